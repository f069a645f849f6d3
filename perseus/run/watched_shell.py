"""watched_shell.py COMMAND: runs a command of the shell, and ends it if its starter ends.

It is run by its path, with any environment, and needs only the standard library. SIGTERM ends the
command and what it has started: these get SIGTERM, and five seconds later SIGKILL. The exit status
is the command's, or 128 and the number of the signal that has killed it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run import processes
else:
    import processes

GRACE_SECONDS = 5.0
_LOOK_SECONDS = 0.02


def main() -> int:
    starter = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: _end_all())
    processes.adopt_orphans()
    processes.end_with_parent(signal.SIGTERM)
    if os.getppid() != starter:
        return 128 + signal.SIGTERM  # it ended before the kernel knew
    status = subprocess.Popen(["/bin/sh", "-c", sys.argv[1]]).wait()
    return 128 - status if status < 0 else status


def _end_all() -> None:
    for number, deadline in (
        (signal.SIGTERM, time.monotonic() + GRACE_SECONDS),
        (signal.SIGKILL, float("inf")),
    ):
        # A process that gets SIGTERM may start another, which SIGKILL reaches.
        for process in _left():
            processes.kill(process, number)
        while left := _left():
            if time.monotonic() > deadline:
                break
            if number == signal.SIGKILL:
                for process in left:
                    processes.kill(process, number)
            time.sleep(_LOOK_SECONDS)


def _left() -> list[int]:
    """Returns the descendants that have not ended; the dead ones are left for `wait`."""
    return [each for each in processes.descendants(os.getpid()) if processes.began(each)]


if __name__ == "__main__":
    sys.exit(main())
