"""Finds Horovod's modules, which are those of Perseus under other names."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from perseus.dropin.modules import MISSING, MODULES

_PERSEUS = Path(__file__).resolve().parent.parent

# The texts of errors about missing modules. `from horovod.torch import mpi_lib_v2` looks for that
# in the package of ours.
_ERRORS = {name: f"{name}: {why}" for name, why in MISSING.items()}
_ERRORS |= {
    f"{MODULES[parent]}.{name}": error
    for (parent, _, name), error in ((full.rpartition("."), e) for full, e in _ERRORS.items())
    if parent in MODULES
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules in MODULES, and other modules of the same packages of ours.

    An import of one in MISSING raises ModuleNotFoundError with the reason, while
    `importlib.util.find_spec` returns None, as for any module that is not there.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _ERRORS:
            if functions := _functions_of_the_import():
                # `from package import module` hides an error that names just this module.
                named = None if functions[-1] == "_handle_fromlist" else fullname
                raise ModuleNotFoundError(_ERRORS[fullname], name=named)
            return None
        parent, _, name = fullname.rpartition(".")
        if fullname in MODULES:
            ours = MODULES[fullname]
        elif parent in MODULES:
            ours = f"{MODULES[parent]}.{name}"  # the finder by path would load it a second time
        else:
            return None
        file = _file_of(ours)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=_Alias(ours, file),
            submodule_search_locations=[str(file.parent)] if file.stem == "__init__" else None,
        )


def _functions_of_the_import() -> list[str]:
    """Returns Python's functions that look for a module to import it, the innermost first.

    Returns [] if it is only to be seen whether the module is there. A finder is called in the same
    way for both, so the callers of its caller tell them apart.
    """
    functions = []
    frame = sys._getframe(2).f_back
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        functions.append(frame.f_code.co_name)
        frame = frame.f_back
    return functions


def _file_of(ours: str) -> Path | None:
    """Returns a module's file without importing its packages, which may lack their framework."""
    _, *names = ours.split(".")
    place = _PERSEUS.joinpath(*names)
    candidates = (place / "__init__.py", place.parent / f"{place.name}.py")
    return next((file for file in candidates if file.is_file()), None)


class _Alias(importlib.abc.InspectLoader):
    """Loads a module of ours, itself and not a copy, under another name."""

    def __init__(self, ours: str, file: Path) -> None:
        self._ours = ours
        self._file = str(file)
        self._spec: Any = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it by the alias's spec

    # `python -m` asks for these.
    def get_code(self, fullname: str) -> CodeType | None:
        return importlib.machinery.SourceFileLoader(self._ours, self._file).get_code(self._ours)

    def get_source(self, fullname: str) -> str | None:
        return importlib.machinery.SourceFileLoader(self._ours, self._file).get_source(self._ours)
