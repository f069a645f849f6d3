"""Runs scripts that `import horovod`, unchanged, on Perseus.

    perseusrun --drop-in -np 4 python train.py
    python -m perseus.dropin train.py              # also under mpirun, torchrun, srun

Both put the folder SITE at the head of the module search path. It holds one package, `horovod`,
whose modules are those of Perseus under Horovod's names. Programs that are started in another way
are not affected.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["HOROVOD_VERSION", "MODULES", "SITE", "hidden_horovod", "install", "search_path"]

#: The release of Horovod whose interface is provided.
HOROVOD_VERSION = "0.28.1"

#: The folder in which `import horovod` finds the package.
SITE = str(Path(__file__).resolve().parent / "site")

#: From the modules of Horovod to ours that replace them.
MODULES = {
    "horovod.common": "perseus.common",
    "horovod.common.basics": "perseus.common.basics",
    "horovod.common.elastic": "perseus.common.elastic",
    "horovod.common.exceptions": "perseus.common.exceptions",
    "horovod.common.process_sets": "perseus.common.process_sets",
    "horovod.common.util": "perseus.common.util",
    "horovod.keras": "perseus.keras",
    "horovod.keras.callbacks": "perseus.keras.callbacks",
    "horovod.keras.elastic": "perseus.keras.elastic",
    "horovod.mxnet": "perseus.mxnet.horovod",
    "horovod.mxnet.compression": "perseus.mxnet.horovod.compression",
    "horovod.mxnet.functions": "perseus.mxnet.horovod.functions",
    "horovod.mxnet.mpi_ops": "perseus.mxnet.horovod.mpi_ops",
    "horovod.runner": "perseus.run",
    "horovod.runner.common": "perseus.dropin.runner.common",
    "horovod.runner.common.util": "perseus.dropin.runner.common.util",
    "horovod.runner.common.util.codec": "perseus.dropin.runner.common.util.codec",
    "horovod.runner.common.util.env": "perseus.dropin.runner.common.util.env",
    "horovod.runner.common.util.hosts": "perseus.dropin.runner.common.util.hosts",
    "horovod.runner.launch": "perseus.dropin.runner.launch",
    "horovod.tensorflow": "perseus.tensorflow.horovod",
    **{
        f"horovod.tensorflow.{name}": f"perseus.tensorflow.horovod.{name}"
        for name in (
            "compression",
            "elastic",
            "functions",
            "gradient_aggregation",
            "gradient_aggregation_eager",
            "keras",
            "keras.callbacks",
            "keras.elastic",
            "mpi_ops",
            "sync_batch_norm",
            "util",
        )
    },
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


_NO_LAUNCHER = (
    "Perseus does not start jobs on {} yet; horovod.run and perseusrun start them on hosts"
)
_NO_RUNNER = "Horovod's launcher is not here; horovod.run and perseusrun start jobs in its place"
_NO_EXTENSION = "Perseus is not compiled against frameworks and needs no extension modules for them"

#: Modules of Horovod that are missing here, and the reasons.
MISSING = {
    "horovod._keras": "it is Horovod's own; horovod.keras and horovod.tensorflow.keras are here",
    "horovod.spark": _NO_LAUNCHER.format("Spark"),
    "horovod.ray": _NO_LAUNCHER.format("Ray"),
    "horovod.data": "Perseus has no data loaders; those of the frameworks load ahead",
    "horovod.mxnet.mpi_lib": _NO_EXTENSION,
    "horovod.tensorflow.mpi_lib": _NO_EXTENSION,
    "horovod.torch.mpi_lib": _NO_EXTENSION,
    "horovod.torch.mpi_lib_v2": _NO_EXTENSION,
}

# Set once the message that Horovod is hidden has been printed, so that the programs that a rank
# starts do not print it again.
NOTICE_SHOWN = "PERSEUS_DROP_IN_NOTICE_SHOWN"


def search_path(python_path: str | None) -> str:
    """Returns a PYTHONPATH with SITE at its head."""
    rest = [entry for entry in (python_path or "").split(os.pathsep) if entry and entry != SITE]
    return os.pathsep.join([SITE, *rest])


def install() -> None:
    """Makes the modules in MODULES importable. `import horovod` calls it."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    hidden = hidden_horovod(sys.path)
    if hidden and NOTICE_SHOWN not in os.environ:
        os.environ[NOTICE_SHOWN] = "1"
        if not _is_later_rank(os.environ):
            print(f"perseus: {hidden}", file=sys.stderr, flush=True)


def hidden_horovod(path: Sequence[str]) -> str:
    """Returns a message if the real Horovod is on the search path as well; "" if not."""
    elsewhere = [entry for entry in path if entry != SITE]
    found = importlib.machinery.PathFinder.find_spec("horovod", elsewhere)
    if found is None or found.origin is None:
        return ""
    try:
        version = f" {importlib.metadata.version('horovod')}"
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return (
        f"'import horovod' gives Perseus, as the drop-in has it, and not Horovod{version} in "
        f"{os.path.dirname(found.origin)}; to use that one, start the program without --drop-in or "
        "perseus.dropin"
    )


def shadow(arguments: Sequence[str]) -> str:
    """Returns a message if `python ARGUMENTS` finds a `horovod` before SITE; "" if not.

    That happens if there is one in the program's own folder.
    """
    options = iter(arguments)
    for option in options:
        if option in ("-W", "-X"):
            next(options, None)
        elif not option.startswith("-") or option == "-":
            folder = os.path.dirname(os.path.abspath(option))
            break
        elif option in ("-m", "-c"):
            folder = os.getcwd()
            break
    else:
        return ""
    found = importlib.machinery.PathFinder.find_spec("horovod", [folder])
    if found is None or found.origin is None:
        return ""
    return f"{found.origin} comes before the drop-in, because it is in the program's own folder"


def _is_later_rank(environment: Mapping[str, str]) -> bool:
    """Returns whether this is a rank other than 0 of a job, under any launcher."""
    from perseus.run.call_back import MPI_RANKS

    names = ("RANK", *MPI_RANKS, "SLURM_PROCID")
    rank = next((environment[name] for name in names if environment.get(name)), "0")
    return rank != "0"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules in MODULES, and other modules of the same packages of ours.

    Raises ModuleNotFoundError with the reason for those in MISSING.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in MISSING:
            raise ModuleNotFoundError(f"{fullname}: {MISSING[fullname]}", name=fullname)
        parent, _, name = fullname.rpartition(".")
        if fullname in MODULES:
            ours = MODULES[fullname]
        elif fullname.startswith("horovod.runner."):
            # Modules of our launcher are not Horovod's, even if they have the same names.
            raise ModuleNotFoundError(f"{fullname}: {_NO_RUNNER}", name=fullname)
        elif parent in MODULES:
            # The finder by path would load it a second time.
            ours = f"{MODULES[parent]}.{name}"
            if importlib.util.find_spec(ours) is None:
                return None
        else:
            return None
        return importlib.util.spec_from_loader(fullname, _Alias(ours), is_package=True)


class _Alias(importlib.abc.Loader):
    """Loads a module of ours, itself and not a copy, under another name."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: Any = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has replaced it by the alias's spec
