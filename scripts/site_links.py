"""site_links.py FOLDER: checks that all links inside a built site lead to a file and an anchor."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: The attributes that hold addresses.
ADDRESSES = ("href", "src", "data")


@dataclass
class Page:
    """The anchors of a page, and the addresses that it refers to."""

    anchors: set[str] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.page.anchors.add(value)
            elif name in ADDRESSES:
                self.page.addresses.add(value)


def read(file: Path) -> Page:
    reader = _Reader()
    reader.feed(file.read_text())
    return reader.page


def broken_links(site: Path) -> list[str]:
    """Returns a line for each link that leads nowhere. Links to other sites are not followed."""
    pages = {file.resolve(): read(file) for file in sorted(site.rglob("*.html"))}
    broken = []
    for file, page in pages.items():
        for address in sorted(page.addresses):
            if problem := _problem(pages, file, address):
                broken.append(f"{file.relative_to(site.resolve())}: {address}: {problem}")
    return broken


def _problem(pages: dict[Path, Page], file: Path, address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "the page has no such anchor"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    broken = broken_links(folder)
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
