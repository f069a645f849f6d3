"""Ends a run: stopped ranks and network namespaces must not outlive it.

SIGINT, SIGTERM and SIGHUP end a run by SystemExit, so that everything is cleaned up quietly.
Processes that the run has started die with it, even if it is killed by SIGKILL.
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
_delayed: list[int] = []
_delaying = False


@contextmanager
def by_exception() -> Iterator[None]:
    """Inside it, the first of SIGNALS raises SystemExit, and later ones do nothing.

    The exit status is a shell's: 130 after Ctrl-C. A signal that was ignored stays ignored, as
    under nohup. For the main thread; it may be nested, and programs wrap everything that they do in
    it.
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
    """Delays SIGNALS until the end of a block that must not be interrupted half-way.

    For the main thread inside by_exception. To block the signals would not do: the kernel would
    give them to another thread, and Python would run the handler in this one.
    """
    global _delaying
    if _delaying:
        yield
        return
    _delaying = True
    try:
        yield
    finally:
        _delaying = False
        while _delayed:
            _end(_delayed.pop(0), None)


def with_parent() -> None:
    """Makes the kernel kill this process when its parent dies, even while it is stopped.

    This still holds after exec, but not for processes that this one starts.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(number: int, _: FrameType | None) -> None:
    if _delaying:
        _delayed.append(number)
        return
    _arrived.append(number)
    if len(_arrived) == 1:
        sys.exit(128 + number)
