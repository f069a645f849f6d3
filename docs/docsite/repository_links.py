"""Turns links to files outside docs/ into links to the repository.

A page links to ../examples/README.md, which works on a code host. The site has no such page, so
there the link leads to the repository. Images are copied into the site, as Sphinx does by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

from docsite.project import ROOT, address_of

log = logging.getLogger(__name__)


class RepositoryLinks(SphinxTransform):
    """Handles what MyST makes of links to files that are not pages of the site."""

    default_priority = 400

    def apply(self, **_: object) -> None:
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                if node.get("reftype") == "myst":
                    self._replace(node)

    def _replace(self, node: nodes.Element) -> None:
        target, _, fragment = node["reftarget"].partition("#")
        if node["refdomain"] == "doc":  # a page, without its suffix
            target, fragment = f"{target}.md", node["reftargetid"]
        page = Path(self.env.doc2path(self.env.docname))
        path = Path(os.path.normpath(page.parent / target))
        if path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT):
            return
        if not path.exists():
            log.warning("%s does not exist", target, location=node)
        anchor = f"#{fragment}" if fragment else ""
        link = nodes.reference("", "", refuri=address_of(path, anchor), internal=False)
        link += node.children
        node.replace_self(link)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
