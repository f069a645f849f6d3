"""Lets long names of code break after an underscore where a column of a table is narrow."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


class BreakAfterUnderscore(SphinxPostTransform):
    default_priority = 900
    formats = ("html",)

    def run(self, **_: object) -> None:
        for entry in self.document.findall(nodes.entry):
            for code in list(entry.findall(nodes.literal)):
                *before, last = code.astext().split("_")
                broken: list[nodes.Node] = []
                for part in before:
                    broken += [nodes.Text(f"{part}_"), nodes.raw("", "<wbr>", format="html")]
                code.children = []
                code.extend([*broken, nodes.Text(last)])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(BreakAfterUnderscore)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
