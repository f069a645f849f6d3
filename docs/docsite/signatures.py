"""Mends what Sphinx makes of some signatures.

A method that a module has as a function, such as perseus.torch's start_timeline, would lose its
first parameter. With autodoc_preserve_defaults, Sphinx gives it a signature without `self`, and
Python then takes the next parameter for `self`.

A type of Python itself would become a link to any attribute of its name, such as Setting.type.
"""

from __future__ import annotations

import builtins
import inspect

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


def _restore_self(app: Sphinx, method: object, is_bound_method: bool) -> None:
    if not inspect.ismethod(method) or is_bound_method:
        return
    signature = vars(method.__func__).get("__signature__")
    if signature and "self" not in signature.parameters:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        parameters = [own, *signature.parameters.values()]
        method.__func__.__signature__ = signature.replace(parameters=parameters)


class BuiltInTypes(SphinxPostTransform):
    """Shows the types of Python itself without a link."""

    default_priority = 5  # before links are resolved

    def run(self, **_: object) -> None:
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("refdomain") == "py" and hasattr(builtins, node["reftarget"]):
                node.replace_self(nodes.Text(node["reftarget"]))


def setup(app: Sphinx) -> dict[str, bool]:
    # After autodoc's own listeners.
    app.connect("autodoc-before-process-signature", _restore_self, priority=900)
    app.add_post_transform(BuiltInTypes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
