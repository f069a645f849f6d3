"""A rank as its agent sees it: a process, and the pipes to it.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import runpy
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run import processes
    from perseus.run.agent_protocol import (
        DRIVER_FD,
        DRIVER_INODE,
        LARGE_PIECE,
        NEWS,
        NEWS_FD,
        NEWS_INODE,
        RESULT,
        RESULT_FD,
        STDERR,
        STDOUT,
        TO_DRIVER,
    )
    from perseus.run.rank_sockets import DriverSocket, NewsSocket, RankSocket
else:  # in an agent, which is run by its path
    import processes
    from agent_protocol import (
        DRIVER_FD,
        DRIVER_INODE,
        LARGE_PIECE,
        NEWS,
        NEWS_FD,
        NEWS_INODE,
        RESULT,
        RESULT_FD,
        STDERR,
        STDOUT,
        TO_DRIVER,
    )
    from rank_sockets import DriverSocket, NewsSocket, RankSocket

#: The agent ignores these signals, which are for the launcher: it ends the job, or has the agents
#: pass them on to the ranks.
IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PIECE = 65536
_MOST_NEWS = 1000  # messages that are read of a rank that has ended


class Rank:
    """A process of the job, and those of its pipes that are still open.

    Args:
      stdin: is closed here.
      has_result: whether it gets a pipe for its result.
      has_driver: whether it gets a socket to speak with the driver of an elastic job.

    Raises OSError if it cannot be started.
    """

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        directory: str,
        environment: Mapping[str, str],
        stdin: int,
        *,
        has_result: bool,
        has_driver: bool,
    ):
        self.rank = rank
        self.running = True
        result_read, result_write = os.pipe()
        news = NewsSocket()
        self.driver = DriverSocket() if has_driver else None
        whole = {**environment, **news.variables(NEWS_FD, NEWS_INODE)}
        kept = [news.other_end.fileno()]
        if self.driver:
            whole |= self.driver.variables(DRIVER_FD, DRIVER_INODE)
            kept.append(self.driver.other_end.fileno())
        if has_result:
            widen(result_write)
            whole[RESULT_FD] = str(result_write)
            kept.append(result_write)
        if whole.get("PMI_FD", "").isdecimal():
            kept.append(int(whole["PMI_FD"]))  # the connection to MPICH's launcher
        try:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=whole,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=kept,
                start_new_session=True,
                preexec_fn=_in_child,
            )
        except OSError:
            os.close(result_read)
            for rank_socket in self._sockets(news):
                rank_socket.close()
            raise
        finally:
            os.close(stdin)
            os.close(result_write)
            for rank_socket in self._sockets(news):
                rank_socket.other_end.close()
        assert self.process.stdout and self.process.stderr
        self.pipes: dict[int, IO[bytes] | RankSocket] = {
            STDOUT: self.process.stdout,
            STDERR: self.process.stderr,
            RESULT: os.fdopen(result_read, "rb"),
            NEWS: news,
        }
        if self.driver:
            self.pipes[TO_DRIVER] = self.driver
        for pipe in self.pipes.values():
            os.set_blocking(pipe.fileno(), False)

    def _sockets(self, news: NewsSocket) -> list[RankSocket]:
        return [news, self.driver] if self.driver else [news]

    def read(self, kind: int) -> bytes | None:
        """Returns some of what a pipe holds; None at its end. Raises BlockingIOError if none."""
        pipe = self.pipes[kind]
        if isinstance(pipe, RankSocket):
            return pipe.read()
        return os.read(pipe.fileno(), LARGE_PIECE if kind == RESULT else _PIECE) or None

    def most_reads(self, kind: int) -> int:
        """Returns after how many reads all is read that a pipe holds now."""
        pipe = self.pipes[kind]
        if isinstance(pipe, RankSocket):
            return _MOST_NEWS
        return 1 + fcntl.fcntl(pipe.fileno(), fcntl.F_GETPIPE_SZ) // _PIECE


def threads_of_a_rank(local_size: int, *, is_shared: bool) -> int | None:
    """Returns what OMP_NUM_THREADS should be; None for a rank that has its host for itself."""
    if local_size == 1:
        return None
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # The agent can import no package, but this file of one needs none either.
    processors = runpy.run_path(os.path.join(packages, "perseus_core/processors.py"))
    threads: int = processors["share"](local_size, is_shared=is_shared)
    return threads


def widen(pipe: int) -> None:
    """Has a pipe hold much, if the system allows it, so that gigabytes change hands less often."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, LARGE_PIECE)


def _in_child() -> None:
    """Runs before exec. The rank must not outlive the agent, and must not ignore signals."""
    processes.end_with_parent(signal.SIGKILL)
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
