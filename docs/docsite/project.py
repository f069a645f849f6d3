"""Facts about the project for the site: its version, and where its repository is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "csrc/include/perseus/perseus.h"


def version() -> str:
    parts = re.findall(r"^#define PERSEUS_VERSION_\w+ (\d+)$", HEADER.read_text(), re.M)
    return ".".join(parts)


def address() -> str:
    """Returns the repository's address, which pyproject.toml has."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["urls"]["Repository"].rstrip("/")


def address_of(path: Path, anchor: str = "") -> str:
    """Returns the address of a file or folder of the repository."""
    kind = "tree" if path.is_dir() else "blob"
    return f"{address()}/{kind}/main/{path.relative_to(ROOT)}{anchor}"
