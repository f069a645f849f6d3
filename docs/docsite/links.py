"""Makes links that are written for a code host suit the site.

A link to a file outside docs/, such as ../examples/README.md, leads to the repository: the site has
no such page. A link whose text is the name of a file, such as gpu.md, shows that page's title.
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


class Links(SphinxTransform):
    """Changes what MyST makes of links, before Sphinx resolves them."""

    default_priority = 400

    def apply(self, **_: object) -> None:
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                if node.get("reftype") == "myst":
                    self._lead_to_repository(node)
        for node in self.document.findall(addnodes.pending_xref):
            if node.get("refdomain") == "doc" and node.astext() == f"{node['reftarget']}.md":
                node["refexplicit"] = False
                node.children[0].clear()

    def _lead_to_repository(self, node: nodes.Element) -> None:
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
    app.add_transform(Links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
