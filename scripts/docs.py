"""docs.py: builds the documentation site into build/docs/html. A warning, or a link that leads
nowhere, is an error."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import debian
import site_links
from find_tool import find_tool

SOURCES = debian.ROOT / "docs"
BUILD = debian.ROOT / "build/docs"
SITE = BUILD / "html"


def doxygen() -> tuple[str, dict[str, str]] | None:
    """Returns the program, and the environment that it needs; None if it cannot be had."""
    environment = {**os.environ}
    if program := find_tool("doxygen"):
        return program, environment
    if debian.fetch(["doxygen"], unpack=False):
        return "/usr/bin/doxygen", environment
    # What is unpacked lacks the libraries that an installation would add.
    prefix = debian.fetch(debian.missing("doxygen"))
    if prefix is None:
        return None
    folders = {str(path.parent) for path in Path(prefix, "lib").rglob("*.so.*")}
    environment["LD_LIBRARY_PATH"] = ":".join(sorted(folders))
    return f"{prefix}/bin/doxygen", environment


def build(clean: bool) -> int:
    began = time.monotonic()
    found = doxygen()
    if found is None:
        return debian.skipped("docs", "Doxygen is missing, and cannot be fetched")
    if clean:
        shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    program, environment = found
    xml = [program, str(SOURCES / "docsite/Doxyfile")]
    if subprocess.run(xml, cwd=debian.ROOT, env=environment).returncode != 0:
        return 1
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-d", str(BUILD / "doctrees")]
    # With -q, Sphinx prints warnings only.
    sphinx += ["--fail-on-warning", "--keep-going", str(SOURCES), str(SITE)]
    if subprocess.run(sphinx, cwd=debian.ROOT).returncode != 0:
        return 1
    broken = site_links.broken_links(SITE)
    for line in broken:
        print(f"make: {line}")
    if broken:
        return 1
    pages = len(list(SITE.rglob("*.html")))
    seconds = time.monotonic() - began
    index = (SITE / "index.html").relative_to(debian.ROOT)
    print(f"make: {pages} pages in {seconds:.0f} s, without a warning; open {index}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split()))
    parser.add_argument("--clean", action="store_true", help="build everything anew")
    return build(parser.parse_args().clean)


if __name__ == "__main__":
    sys.exit(main())
