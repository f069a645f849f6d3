"""What the engine tells about itself: counters, settings, timeline, what it found here."""

from __future__ import annotations

import os
from dataclasses import dataclass

from perseus_core import _engine

__all__ = [
    "GpuSupport",
    "Setting",
    "check_build",
    "counters",
    "extension_path",
    "gpu_support",
    "settings",
    "start_timeline",
    "stop_timeline",
]


@dataclass(frozen=True)
class Setting:
    """One row of docs/settings.md."""

    name: str
    #: "int", "float", "bool", "string" or "choice"
    type: str
    default: str
    #: "1 .. 64", or the choices, or ""
    range: str
    since: str
    #: other names that set it
    aliases: tuple[str, ...]
    help: str
    #: as init found it in this process
    value: str


@dataclass(frozen=True)
class GpuSupport:
    """What there is here for tensors on GPUs.

    Versions are as the libraries number them; 0: there is none that can be used.
    """

    #: 13020 is for CUDA 13.2
    cuda_driver: int
    cuda_runtime: int
    #: 22105 is 2.21.5
    nccl: int
    #: were built into this library
    has_kernels: bool


def counters() -> dict[str, int]:
    """Every counter of this process."""
    return dict(_engine.counters())


def settings() -> list[Setting]:
    """The table of settings, with the values as init found them, or would find them now.

    What the tuner has kept since is not among them: see PERSEUS_TUNING_LOG.
    """
    table = []
    for name, kind, default, span, since, aliases, text, value in _engine.settings():
        others = tuple(alias.strip() for alias in aliases.split(",") if alias)
        table.append(Setting(name, kind, default, span, since, others, text, value))
    return table


def check_build() -> dict[str, str]:
    """What could be found here: MPI, CUDA, NCCL, features of the CPU."""
    return dict(_engine.check_build())


def extension_path() -> str:
    """Returns the file of the extension module that holds the Python bindings of the engine."""
    return str(_engine.__file__)


def gpu_support() -> GpuSupport:
    """Opens CUDA's libraries and NCCL, if that has not been done; CUDA itself is not started.

    ValueError for a malformed setting.
    """
    return GpuSupport(*_engine.gpu_support())


def start_timeline(path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Writes a Chrome-trace timeline from now on; `mark_cycles` marks each agreement."""
    _engine.start_timeline(os.fspath(path), mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline; the file is then complete."""
    _engine.stop_timeline()
