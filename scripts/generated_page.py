"""Writes the generated sections of pages in docs/. A section is between two lines:

    <!-- begin NAME: written by scripts/make_..._page.py -->
    <!-- end NAME -->

The rest of a page is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments(doc: str | None, **more: str) -> argparse.Namespace:
    """Reads the arguments of a script that writes a page: --check, and switches with their help."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only fail if the page differs")
    for name, text in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=text)
    return parser.parse_args()


def update(page: Path, sections: Mapping[str, str], *, check: bool) -> None:
    """Writes the sections into the page, or only checks that it has them."""
    text = page.read_text()
    wanted = text
    for name, content in sections.items():
        wanted = replaced(wanted, name, content)
    if wanted == text:
        return
    if check:
        sys.exit(f"{page} is out of date; `make pages` writes it anew")
    page.write_text(wanted)


def replaced(text: str, name: str, content: str) -> str:
    begin = rf"<!-- begin {name}: written by scripts/{re.escape(Path(sys.argv[0]).name)} -->\n"
    pattern = re.compile(rf"({begin}).*?(<!-- end {name} -->\n)", re.S)
    parts = pattern.findall(text)
    if len(parts) != 1:
        sys.exit(f"{sys.argv[0]}: the page has the section {name} {len(parts)} times, not once")
    return pattern.sub(lambda found: f"{found[1]}\n{content}\n{found[2]}", text)


def table(columns: str, rows: list[str]) -> str:
    """Returns a table of rows that are written as `| ... | ... |`."""
    rule = "|" + "---|" * (columns.count("|") - 1)
    return "\n".join([columns, rule, *rows]).replace("|  |", "| |") + "\n"
