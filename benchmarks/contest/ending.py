"""How a run ends: stopped ranks and network namespaces must not outlive it.

SIGINT, SIGTERM and SIGHUP end a run by SystemExit, so that everything is cleaned up, and quietly.
Processes that it has started die with it even if it is killed by SIGKILL.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None)
_arrived: list[int] = []


@contextmanager
def by_exception() -> Iterator[None]:
    """Meanwhile the first of SIGNALS raises SystemExit, and those after it do nothing.

    The exit status is a shell's: 130 after Ctrl-C. What was ignored stays ignored, as under nohup.
    For the main thread; may be nested: programs have it around all that they do.
    """
    if signal.getsignal(signal.SIGTERM) is _end:
        yield
        return
    _arrived.clear()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: old for number, old in before.items() if old is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def held_back() -> Iterator[None]:
    """For what must not be left half-way: SIGNALS arrive after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def with_parent() -> None:
    """From now on this process is killed when its parent dies, even while it is stopped.

    That holds for the program that it becomes by exec, but not for processes that it starts.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(number: int, _: FrameType | None) -> None:
    _arrived.append(number)
    if len(_arrived) == 1:
        sys.exit(128 + number)
