"""Runs scripts that `import horovod`, unchanged, on Perseus.

    perseusrun --drop-in -np 4 python train.py
    python -m perseus.dropin train.py              # also under mpirun, torchrun, srun
    python -m perseus.dropin --run horovodrun -np 4 python train.py

All put the folder SITE at the head of the module search path. It holds one package, `horovod`,
whose modules are those of Perseus under Horovod's names, and the metadata of a distribution of that
name. They also put the folder PROGRAMS, which holds `horovodrun`, at the head of PATH. Programs
that are started in another way are not affected.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from perseus.dropin.finder import Finder

__all__ = [
    "HOROVOD_VERSION",
    "NOTICE_SHOWN",
    "PROGRAMS",
    "SITE",
    "environment",
    "hidden_horovod",
    "install",
    "shadow",
]

#: The release of Horovod whose interface is provided.
HOROVOD_VERSION = "0.28.1"

#: The folder in which `import horovod` finds the package.
SITE = str(Path(__file__).resolve().parent / "site")

#: The folder of Horovod's commands.
PROGRAMS = str(Path(__file__).resolve().parent / "programs")

# Names the Python that has Perseus, for the commands in PROGRAMS.
_PYTHON = "PERSEUS_DROP_IN_PYTHON"

# Set once the message that Horovod is hidden has been printed, so that the programs that a rank
# starts do not print it again.
NOTICE_SHOWN = "PERSEUS_DROP_IN_NOTICE_SHOWN"


def environment(before: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to set for a program in which `import horovod` gives Perseus."""
    return {
        "PYTHONPATH": _with_first(SITE, before.get("PYTHONPATH", "")),
        "PATH": _with_first(PROGRAMS, before.get("PATH", os.defpath)),
        _PYTHON: sys.executable,
    }


def _with_first(first: str, path: str) -> str:
    rest = [entry for entry in path.split(os.pathsep) if entry and entry != first]
    return os.pathsep.join([first, *rest])


def install() -> None:
    """Makes the modules in MODULES importable. `import horovod` calls it."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
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
    distributions = importlib.metadata.distributions(name="horovod", path=elsewhere)
    version = next((f" {distribution.version}" for distribution in distributions), "")
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
