"""Runs scripts that `import horovod`, unchanged, on Perseus.

    perseusrun --drop-in -np 4 python train.py
    python -m perseus.dropin train.py              # also under mpirun, torchrun, srun

Both put the folder SITE at the head of the module search path. It holds one package, `horovod`,
whose modules are those of Perseus under the names that Horovod gives them. Nothing is changed for
programs that are started otherwise.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["HOROVOD_VERSION", "MODULES", "SITE", "install", "search_path"]

#: The release whose interface is served.
HOROVOD_VERSION = "0.28.1"

#: The folder that `import horovod` is to be found in.
SITE = str(Path(__file__).resolve().parent / "site")

#: Horovod's modules, and ours that stand for them.
MODULES = {
    "horovod.common": "perseus.common",
    "horovod.common.basics": "perseus.common.basics",
    "horovod.common.elastic": "perseus.common.elastic",
    "horovod.common.exceptions": "perseus.common.exceptions",
    "horovod.common.process_sets": "perseus.common.process_sets",
    "horovod.common.util": "perseus.common.util",
    "horovod.runner": "perseus.run",
    "horovod.torch": "perseus.torch.horovod",
    "horovod.torch.compression": "perseus.torch.horovod.compression",
    "horovod.torch.elastic": "perseus.torch.horovod.elastic",
    "horovod.torch.elastic.sampler": "perseus.torch.horovod.elastic.sampler",
    "horovod.torch.elastic.state": "perseus.torch.horovod.elastic.state",
    "horovod.torch.functions": "perseus.torch.horovod.functions",
    "horovod.torch.mpi_ops": "perseus.torch.horovod.mpi_ops",
    "horovod.torch.optimizer": "perseus.torch.horovod.optimizer",
    "horovod.torch.sync_batch_norm": "perseus.torch.horovod.sync_batch_norm",
}


def search_path(python_path: str | None) -> str:
    """A PYTHONPATH with SITE at its head."""
    rest = [entry for entry in (python_path or "").split(os.pathsep) if entry and entry != SITE]
    return os.pathsep.join([SITE, *rest])


def install() -> None:
    """Makes the modules in MODULES importable. Called by `import horovod` itself."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        _say_what_is_hidden()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules in MODULES, and those that lie beside them in our packages."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if fullname in MODULES:
            ours = MODULES[fullname]
        elif parent in MODULES:
            # Found by path, it would be loaded a second time.
            ours = f"{MODULES[parent]}.{name}"
            if importlib.util.find_spec(ours) is None:
                return None
        else:
            return None
        return importlib.util.spec_from_loader(fullname, _Alias(ours), is_package=True)


class _Alias(importlib.abc.Loader):
    """Gives a module of ours, itself and not a copy, under another name."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: Any = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which the import has replaced by the alias's


def _say_what_is_hidden() -> None:
    try:
        hidden = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return
    print(
        "perseus: 'import horovod' gives Perseus, as asked for, and not Horovod "
        f"{hidden.version} in {hidden.locate_file('horovod')}",
        file=sys.stderr,
    )
