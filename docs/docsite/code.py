"""Highlights the indented blocks of pages that are Python. Markdown gives these no language."""

from __future__ import annotations

import ast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class IndentedPython(SphinxTransform):
    default_priority = 400

    def apply(self, **_: object) -> None:
        for block in self.document.findall(nodes.literal_block):
            if block.get("language") == "none" and is_python(block.astext()):
                block["language"] = "python"


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(IndentedPython)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
