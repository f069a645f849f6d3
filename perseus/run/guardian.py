"""Stays behind an agent, so that nothing that ranks have started outlives an agent that is killed.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run import processes
else:  # in an agent, which is run by its path
    import processes

_SECONDS = 1.0  # for processes to be gone that have been killed


def guard(ignored: Sequence[signal.Signals]) -> None:
    """Returns in a new child, which is to be the agent. The parent ends when that has ended.

    If the agent is killed, ranks get SIGKILL from the kernel. What ranks have started becomes the
    parent's, which kills it. If the parent is killed, the agent ends the job as on SIGTERM.

    Args:
      ignored: signals that the parent ignores.
    """
    processes.adopt_orphans()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        processes.end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)  # it was killed before the kernel knew
        return
    signal.signal(signal.SIGTERM, lambda *_: processes.kill(child, signal.SIGTERM))
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    status = _wait_for(child)
    end_descendants()
    if os.WIFSIGNALED(status):
        killed_by = signal.Signals(os.WTERMSIG(status))
        os.write(2, f"its agent was killed by {killed_by.name}\n".encode())
        os._exit(128 + killed_by)
    os._exit(os.WEXITSTATUS(status))


def end_descendants() -> None:
    """Kills all descendants of this process, which adopts those that others leave behind."""
    deadline = time.monotonic() + _SECONDS
    # Where there are many processes, it takes long to find them, so some are killed in any case.
    while left := processes.descendants(os.getpid()):
        for process in left:
            processes.kill(process, signal.SIGKILL)
        _reap()
        if time.monotonic() >= deadline:
            return


def _wait_for(child: int) -> int:
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return status


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
