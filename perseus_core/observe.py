"""The engine's counters, settings and timeline, and the libraries and hardware that it found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from perseus_core import _engine

__all__ = [
    "GpuSupport",
    "Setting",
    "check_build",
    "core_distance",
    "counters",
    "extension_path",
    "gpu_support",
    "library_version",
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
    #: other names of environment variables that set it
    aliases: tuple[str, ...]
    help: str
    #: the value that init found in this process
    value: str


@dataclass(frozen=True)
class GpuSupport:
    """The libraries for tensors on GPUs that can be used here.

    Versions have the libraries' own numbers; 0 means that there is none that can be used.
    """

    #: 13020 is for CUDA 13.2
    cuda_driver: int
    cuda_runtime: int
    #: 22105 is 2.21.5
    nccl: int
    #: whether the engine was built with CUDA kernels
    has_kernels: bool


def counters() -> dict[str, int]:
    """Returns every counter of this process, by name."""
    return dict(_engine.counters())


def settings() -> list[Setting]:
    """Returns the table of settings with their values: those that init found, or would find now.

    Values that the tuner has chosen since are not shown: see PERSEUS_TUNING_LOG.
    """
    table = []
    for name, kind, default, span, since, aliases, text, value in _engine.settings():
        others = tuple(alias.strip() for alias in aliases.split(",") if alias)
        table.append(Setting(name, kind, default, span, since, others, text, value))
    return table


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises ValueError if a setting in the environment is malformed, as init would in a rank."""
    # The values of other variables may not be text.
    entries = [f"{name}={value}".encode(errors="replace") for name, value in environment.items()]
    _engine.check_environment(entries)


def library_version() -> str:
    """Returns the version as which the engine's library was built, such as "0.1.0"."""
    number = _engine.version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def check_build() -> dict[str, str]:
    """Returns what was found on this machine, by topic: MPI, CUDA, NCCL, features of the CPU."""
    return dict(_engine.check_build())


def core_distance(first: int, second: int) -> float:
    """Returns how far apart two processors are, in nanoseconds.

    It is the time in which a cache line that one of them has written comes to the other: some 30 ns
    under one last-level cache, and over 100 ns between two. Keeps both busy for about 1 ms.

    Args:
      first, second: numbers of processors, as in os.sched_getaffinity.

    Raises:
      ValueError: the two are one, or this process may not run on both.
      TimedOutError: others compute there all the time.
    """
    return _engine.core_distance(first, second)


def extension_path() -> str:
    """Returns the file of the extension module that holds the Python bindings of the engine."""
    return str(_engine.__file__)


def gpu_support() -> GpuSupport:
    """Returns the libraries for GPUs. Opens them if necessary, without initializing CUDA.

    Raises ValueError for a malformed setting.
    """
    return GpuSupport(*_engine.gpu_support())


def start_timeline(path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts to write a Chrome-trace timeline; `mark_cycles` marks each round of agreement."""
    _engine.start_timeline(os.fspath(path), mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline. The file is complete when this returns."""
    _engine.stop_timeline()
