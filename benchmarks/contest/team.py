"""The ranks of one contender, and the conversation with each of them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from contest.launch import Contender, Host, Job, UnavailableError, launch


class WorkFailedError(Exception):
    """A rank answered that it could not do the work; the message is the rank's reason."""


class NoAnswerError(UnavailableError):
    """The ranks have not ended their work within the time, and none has died."""


class Team:
    """The ranks of one contender. They are stopped except during `run`.

    Any call may raise UnavailableError, which says why the team cannot go on. dismiss must then
    still be called, unless the constructor raised it.
    """

    def __init__(
        self,
        contender: Contender,
        ranks: int,
        hosts: Sequence[Host],
        folder: Path,
        time_out: float,
    ) -> None:
        self._log = folder / "log"
        self.pids: list[int] = []
        self._ranks: list[Rank] = []
        self._job = Job([])
        with socket.socket(socket.AF_UNIX) as meeting, self._log.open("wb") as log:
            meeting.bind(str(folder / "socket"))
            meeting.listen(ranks)
            self._job = launch(contender, ranks, hosts, folder / "socket", log)
            try:
                self._gather(meeting, ranks, time_out)
            except BaseException:
                self.dismiss()
                raise
        self._signal(signal.SIGSTOP)

    def run(self, line: str, time_out: float) -> tuple[list[float], str]:
        """Returns the slowest rank's times of "WORK key=value ...", and rank 0's note, or "".

        Raises WorkFailedError if the ranks can still do other work.
        """
        self._signal(signal.SIGCONT)
        for rank in self._ranks:
            rank.send(f"run {line}")
        answers = self._answers(time.monotonic() + time_out)
        self._signal(signal.SIGSTOP)
        failed = [text for kind, text in answers if kind == "error"]
        if failed:
            raise WorkFailedError(failed[0])
        parts = [text.partition(" # ") for _, text in answers]
        times = [[float(word) for word in numbers.split()] for numbers, _, _ in parts]
        return [max(of_iteration) for of_iteration in zip(*times, strict=True)], parts[0][2]

    def dismiss(self) -> None:
        """Ends the ranks and the processes that started them, whatever they are doing."""
        self._signal(signal.SIGCONT)
        for rank in self._ranks:
            with contextlib.suppress(UnavailableError):
                rank.send("end")
        deadline = time.monotonic() + 3.0
        for process in self._job.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in [*self._job.processes, *self._job.servers]:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(2.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        # Ranks that an mpirun started may be left.
        own = [process.pid for process in self._job.processes]
        self.pids = [pid for pid in self.pids if pid not in own]
        self._signal(signal.SIGKILL)
        for rank in self._ranks:
            rank.close()
        self.pids.clear()

    def _gather(self, meeting: socket.socket, ranks: int, time_out: float) -> None:
        deadline = time.monotonic() + time_out
        found: dict[int, Rank] = {}
        meeting.settimeout(0.2)
        while len(found) < ranks:
            started = [*self._job.processes, *self._job.servers]
            if any(process.poll() not in (None, 0) for process in started):
                raise UnavailableError(f"did not start: {self._last_words()}")
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{ranks - len(found)} of {ranks} ranks did not start within {time_out:.0f} s;"
                    f" last words: {self._last_words()}"
                )
            try:
                connection, _ = meeting.accept()
            except TimeoutError:
                continue
            rank = Rank(connection)
            self._ranks.append(rank)
            _, number, size, pid = rank.receive(deadline, self._last_words).split()
            self.pids.append(int(pid))
            if int(size) != ranks:
                raise UnavailableError(f"rank {number} found {size} ranks, not {ranks}")
            found[int(number)] = rank
        self._ranks = [found[number] for number in range(ranks)]

    def _answers(self, deadline: float) -> list[tuple[str, str]]:
        answers: dict[int, tuple[str, str]] = {}
        with selectors.DefaultSelector() as selector:
            for number, rank in enumerate(self._ranks):
                selector.register(rank.connection, selectors.EVENT_READ, number)
            while len(answers) < len(self._ranks):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    told = [text for kind, text in answers.values() if kind == "error"]
                    if told:
                        raise UnavailableError(told[0])
                    raise NoAnswerError(f"no answer in time; last words: {self._last_words()}")
                for key, _ in ready:
                    line = self._ranks[key.data].receive(deadline, self._last_words)
                    kind, _, text = line.partition(" ")
                    answers[key.data] = kind, text
                    selector.unregister(key.fileobj)
                    if kind == "error":  # the others may wait for it forever
                        deadline = min(deadline, time.monotonic() + 10.0)
        return [answers[number] for number in range(len(self._ranks))]

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _last_words(self) -> str:
        lines = [
            line for line in self._log.read_text(errors="replace").splitlines() if line.strip()
        ]
        return lines[-1].strip()[:300] if lines else "none were printed"


class Rank:
    """The conversation with one rank, by lines in both directions."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def send(self, line: str) -> None:
        try:
            self.connection.sendall(line.encode() + b"\n")
        except OSError as error:
            raise UnavailableError(f"a rank is gone: {error}") from error

    def receive(self, deadline: float, last_words: Callable[[], str]) -> str:
        while b"\n" not in self._buffer:
            self.connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                received = self.connection.recv(1 << 16)
            except TimeoutError as error:
                raise NoAnswerError(f"no answer in time; last words: {last_words()}") from error
            except OSError as error:
                raise UnavailableError(f"a rank died: {last_words()}") from error
            if not received:
                raise UnavailableError(f"a rank died: {last_words()}")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        self.connection.close()
