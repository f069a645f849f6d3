"""installer.py PYTHON ARGUMENT...: installs packages into the environment of that Python.

It uses uv, which keeps what it has unpacked and takes a tenth of pip's processor time. It uses pip
if uv cannot be installed, or NO_UV is set. The arguments are those that both take after `pip
install`. Neither compiles bytecode: a module gets its own when it is first imported, and more than
half of PyTorch's and TensorFlow's never are.

PyTorch comes from its own index of CPU builds, where that answers: on x86-64 the package index has
the CUDA build, with gigabytes of libraries. UV_TORCH_BACKEND chooses another build (cu130, auto).
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import debian

REQUIREMENT = debian.ROOT / "requirements/uv.txt"
#: uv is installed here once, for all environments of this tree.
HOME = debian.ROOT / "build/uv"
#: pip's settings for package sources: uv's variable for each, and the separator of a list.
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
}

#: Said where PyTorch does not come from its index of CPU builds.
OTHER_BUILD = "the package index's build is taken, which may bring gigabytes of CUDA"


def translated(listing: str) -> dict[str, str]:
    """Returns variables that tell uv what `pip config list` printed (global.cert='/path')."""
    variables: dict[str, str] = {}
    # pip's environment variables take precedence over its files.
    for line in sorted(listing.splitlines(), key=lambda line: not line.startswith(":env:")):
        key, _, quoted = line.partition("=")
        name = key.rpartition(".")[2]
        if name in SETTINGS:
            variable, separator = SETTINGS[name]
            words = " ".join(shlex.split(quoted)).split()
            variables.setdefault(variable, separator.join(words))
    return variables


@cache
def _uv(python: str) -> dict[str, str] | None:
    """Installs uv into HOME with this Python's pip; returns uv's environment, or None without
    uv."""
    if os.environ.get("NO_UV"):
        return None
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    if not (HOME / "bin/uv").exists():
        fetch = [*pip, "install", "-q", "--target", str(HOME), "-r", str(REQUIREMENT)]
        done = subprocess.run(fetch, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0 or not (HOME / "bin/uv").exists():
            print("make: uv cannot be had, so pip installs the packages", flush=True)
            return None
    listing = subprocess.run([*pip, "config", "list"], capture_output=True, text=True).stdout
    # As pip does, take the best version that any of the indexes has.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **translated(listing), **os.environ}


def names_torch(arguments: Sequence[str]) -> bool:
    """Returns whether torch is among the requirements, or in a file of them."""
    files = [value for option, value in itertools.pairwise(arguments) if option == "-r"]
    lines = [*arguments, *(line for file in files for line in Path(file).read_text().splitlines())]
    return any(re.match(r"torch\s*([=<>!~\[;]|$)", line) for line in lines)


def _install_with_torch(uv: list[str], environment: dict[str, str]) -> bool:
    # Without a network that answers, the attempt should take no time.
    more = {"UV_TORCH_BACKEND": "cpu", "UV_HTTP_RETRIES": "0"}
    done = subprocess.run(
        uv, stdin=subprocess.DEVNULL, capture_output=True, env={**more, **environment}
    )
    if done.returncode != 0:
        print(f"make: PyTorch's own index cannot be reached; {OTHER_BUILD}", flush=True)
    return done.returncode == 0


def install(python: str, *arguments: str) -> bool:
    """Returns whether the installation succeeded; if not, the installer has printed why."""
    if environment := _uv(python):
        uv = [str(HOME / "bin/uv"), "pip", "install", "-q", "--python", python, *arguments]
        if names_torch(arguments) and _install_with_torch(uv, environment):
            return True
        if subprocess.run(uv, stdin=subprocess.DEVNULL, env=environment).returncode == 0:
            return True
        print("make: uv could not install that, so pip tries", flush=True)
    elif names_torch(arguments):
        print(f"make: pip installs PyTorch; {OTHER_BUILD}", flush=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
    return subprocess.run([*pip, *arguments], stdin=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", metavar="PYTHON")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    sys.exit(0 if install(args.python, *args.arguments) else 1)
