"""Makes the site's navigation from the sections of docs/index.md.

A section of that page is a heading and a list of links. Written like this, the page is also what a
reader of the repository needs. Each section becomes a caption of the navigation, and each link
an entry of it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from docsite.project import ROOT, address_of

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTION = re.compile(r"^## (?P<caption>.+)\n\n(?P<links>(?:- \[.+\n(?:  .+\n)*)+)", re.M)
LINK = re.compile(r"^- \[(?P<title>.+?)\]\((?P<target>[^)]+)\)", re.M)


def entry(title: str, target: str) -> str:
    """Returns a line of a toctree: a page of the site, or an address in the repository."""
    path = Path(os.path.normpath(ROOT / "docs" / target))
    if path.is_relative_to(ROOT / "docs"):
        return f"{title} <{target.rpartition('.')[0]}>"
    return f"{title} <{address_of(path)}>"


def with_navigation(text: str) -> str:
    """Returns the page with a hidden toctree after each list."""

    def extended(section: re.Match[str]) -> str:
        entries = "\n".join(
            entry(*link.group("title", "target")) for link in LINK.finditer(section["links"])
        )
        options = f":hidden:\n:caption: {section['caption']}"
        return f"{section[0]}\n```{{toctree}}\n{options}\n\n{entries}\n```\n"

    return SECTION.sub(extended, text)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        source[0] = with_navigation(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
