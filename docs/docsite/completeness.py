"""Warns of public names that the reference lacks, and of those that have no docstring."""

from __future__ import annotations

import importlib
import inspect
import re

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

from docsite.project import HEADER
from docsite.stand_ins import MOCKED

#: Each documents all names of its `__all__`.
MODULES = (
    "perseus_core",
    "perseus.keras",
    "perseus.keras.callbacks",
    "perseus.keras.elastic",
    "perseus.mxnet.horovod",
    "perseus.mxnet.horovod.elastic",
    "perseus.pipeline",
    "perseus.pipeline.layerwise",
    "perseus.run",
    "perseus.tensorflow.horovod",
    "perseus.tensorflow.horovod.elastic",
    "perseus.tensorflow.horovod.keras",
    "perseus.tensorflow.horovod.keras.callbacks",
    "perseus.tensorflow.horovod.keras.elastic",
    "perseus.torch.ddp",
    "perseus.torch.horovod",
    "perseus.torch.horovod.elastic",
)

log = logging.getLogger(__name__)


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    documented = {entry[0] for entry in env.get_domain("py").get_objects()}
    with mock(MOCKED):
        modules = [importlib.import_module(name) for name in MODULES]
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            # A class that all adapters share is documented once, under the name where it is.
            home = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
            if inspect.ismodule(value):
                continue
            if not {f"{module.__name__}.{name}", home} & documented:
                log.warning("docs/api lacks %s.%s", module.__name__, name)
            if callable(value) and not inspect.getdoc(value):
                log.warning("%s.%s has no docstring", module.__name__, name)
    declared = set(re.findall(r"\b(perseus_\w+)\(", _without_comments(HEADER.read_text())))
    in_c = {entry[0] for entry in env.get_domain("c").get_objects()}
    for name in sorted(declared - in_c):
        log.warning("docs/api/c.rst lacks %s", name)


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
