"""Modules and classes that Sphinx documents in place of the real ones.

MXNet cannot be installed beside the other frameworks. Its stand-in has the classes which the
adapter's own derive from, are annotated with, or have handlers for.
"""

from __future__ import annotations
import __future__

import sys
import types
from pathlib import Path
from typing import ClassVar

import perseus
import perseus_core

#: The part of the adapter that opens MXNet's library. Autodoc replaces it.
MOCKED = ["perseus.mxnet.engine"]


class KVStoreBase:
    """Of MXNet: the base of its stores, which registers them by name."""

    kv_registry: ClassVar[dict[str, type]] = {}


def _module(name: str, **members: object) -> types.ModuleType:
    module = types.ModuleType(name)
    for member, value in members.items():
        if isinstance(value, type):
            value.__module__ = name
        setattr(module, member, value)
    sys.modules[name] = module
    return module


def _class(name: str) -> type:
    return type(name, (), {})


def stand_in_for_mxnet() -> None:
    _module(
        "mxnet",
        MXNetError=type("MXNetError", (RuntimeError,), {}),
        error=_module("mxnet.error", register=lambda word, kind: kind),
        gluon=_module(
            "mxnet.gluon",
            **{name: _class(name) for name in ("Block", "Parameter", "ParameterDict", "Trainer")},
        ),
        kvstore=_module("mxnet.kvstore", KVStoreBase=KVStoreBase),
        optimizer=_module("mxnet.optimizer", Optimizer=_class("Optimizer")),
    )
    # The package refuses to be imported with NumPy's present version, so its modules are imported
    # without it.
    package = _module("perseus.mxnet")
    package.__path__ = [str(Path(perseus.__path__[0]) / "mxnet")]


def read_engine_stub() -> None:
    """Puts a class of the extension module in the form in which its stub describes it.

    The extension module itself has neither docstrings nor readable types.
    """
    stub = Path(perseus_core.__path__[0]) / "_engine.pyi"
    # A stub names classes before it defines them.
    flags = __future__.annotations.compiler_flag
    module = _module("perseus_core._engine_stub")
    exec(compile(stub.read_text(), stub, "exec", flags), vars(module))
    module.Rendezvous.__module__ = "perseus_core"
    perseus_core.Rendezvous = module.Rendezvous
