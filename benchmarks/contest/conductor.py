"""Gives each contender its turns, and gathers times.

Every contender's ranks live all the time, but only those of the one in turn run: the others are
stopped by SIGSTOP, so that one that polls burns no core of another's turn. Turns are interleaved:
what changes on the machine meanwhile meets all alike.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contest.launch import KNOWN, Contender, Host, Job, NotToBeHadError, launch


@dataclass
class Times:
    """Of one contender at one work: for each iteration the slowest rank's, in microseconds.

    `reason` says why there are none, or no more than these.
    """

    microseconds: list[float] = field(default_factory=list)
    reason: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.microseconds) if self.microseconds else None

    def percentile(self, percent: float) -> float | None:
        """The value that `percent` of the iterations stay below."""
        ordered = sorted(self.microseconds)
        return ordered[round((len(ordered) - 1) * percent / 100)] if ordered else None


class Conductor:
    """Starts contenders and lets them work in turns; a context manager.

        with Conductor(["perseus", variant("perseus", "8 streams",
                        PERSEUS_ALLREDUCE_STREAMS="8"), "torch gloo"], ranks=2) as contest:
            times = contest.measure("collective.allreduce", seconds=0.5, elements=1 << 20)
            times["8 streams"].median

    contenders: names from launch.KNOWN, or Contenders (variants of those, say); labels must differ.
    ranks: of each contender. hosts: where they run, in blocks; this host if not given.
    time_out: seconds that one turn, or the start of a contender, may take.

    A contender that cannot start, dies, or does not answer in time is out: `absent` gives its
    reason, as do the Times of every later measurement. For the main thread alone.
    """

    def __init__(
        self,
        contenders: Iterable[str | Contender],
        ranks: int,
        hosts: Sequence[Host] | None = None,
        time_out: float = 60.0,
    ) -> None:
        listed = [KNOWN[one] if isinstance(one, str) else one for one in contenders]
        self.contenders = {contender.label: contender for contender in listed}
        if len(self.contenders) != len(listed):
            raise ValueError("two contenders have the same label")
        self.ranks = ranks
        self.hosts = list(hosts or [Host()])
        self.time_out = time_out
        self.absent: dict[str, str] = {}
        self._teams: dict[str, _Team] = {}

    def __enter__(self) -> Conductor:
        # Stopped ranks would outlive a conductor that ends without a word.
        self._on_term = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self._folder = tempfile.TemporaryDirectory(prefix="contest-")
        try:
            for number, contender in enumerate(self.contenders.values()):
                self._enlist(contender, Path(self._folder.name) / str(number))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for team in self._teams.values():
            team.dismiss()
        self._teams.clear()
        self._folder.cleanup()
        signal.signal(signal.SIGTERM, self._on_term)

    def measure(
        self,
        work: str,
        *,
        turns: int = 5,
        iterations: int | None = None,
        seconds: float = 0.3,
        only: Iterable[str] | None = None,
        **options: Any,
    ) -> dict[str, Times]:
        """Lets every contender, or `only` some, do `work` in `turns` interleaved turns.

        work: "module.function" of contest/works; `options` are its keyword arguments: numbers or
        strings. Each turn is `iterations` long if that is given; else about `seconds`, of which a
        trial tells how many iterations that is (3 to 2000, for each contender its own).
        A work that fails on all ranks is only that work's failure: the contender stays.
        """
        labels = list(self.contenders if only is None else only)
        results = {label: Times(reason=self.absent.get(label)) for label in labels}
        counts = {}
        for label in labels:
            if label not in self.absent:
                counts[label] = iterations or self._trial(
                    label, work, seconds, options, results[label]
                )
        for _ in range(turns):
            for label in labels:
                if results[label].reason is None:
                    self._turn(
                        label, work, {**options, "iterations": counts[label]}, results[label]
                    )
        return results

    def pids(self, label: str) -> list[int]:
        """The processes of a contender's ranks; none if it is out."""
        return list(self._teams[label].pids) if label in self._teams else []

    def _trial(
        self, label: str, work: str, seconds: float, options: dict[str, Any], result: Times
    ) -> int:
        trial = Times()
        self._turn(label, work, {**options, "iterations": 5}, trial)
        result.reason = trial.reason
        return max(3, min(2000, round(seconds * 1e6 / max(trial.median or 0.0, 1.0))))

    def _enlist(self, contender: Contender, folder: Path) -> None:
        folder.mkdir()
        try:
            self._teams[contender.label] = _Team(
                contender, self.ranks, self.hosts, folder, self.time_out
            )
        except NotToBeHadError as error:
            self.absent[contender.label] = str(error)

    def _turn(self, label: str, work: str, options: dict[str, Any], result: Times) -> None:
        words = [work, *(f"{name}={shlex.quote(str(value))}" for name, value in options.items())]
        try:
            result.microseconds += self._teams[label].run(" ".join(words), self.time_out)
        except _WorkFailedError as error:
            result.reason = str(error)
        except NotToBeHadError as error:
            result.reason = self.absent[label] = str(error)
            self._teams.pop(label).dismiss()


class _WorkFailedError(Exception):
    pass


class _Team:
    """The ranks of one contender: stopped, but for the time of `run`."""

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
        self._ranks: list[_Rank] = []
        self._job = Job([])
        with socket.socket(socket.AF_UNIX) as meeting, self._log.open("wb") as log:
            meeting.bind(str(folder / "socket"))
            meeting.listen(ranks)
            self._job = launch(contender, ranks, hosts, folder / "socket", log)
            try:
                self._gather(meeting, ranks, time.monotonic() + time_out)
            except BaseException:
                self.dismiss()
                raise
        self._signal(signal.SIGSTOP)

    def run(self, line: str, time_out: float) -> list[float]:
        self._signal(signal.SIGCONT)
        for rank in self._ranks:
            rank.send(f"run {line}")
        answers = self._answers(time.monotonic() + time_out)
        self._signal(signal.SIGSTOP)
        failed = [text for kind, text in answers if kind == "error"]
        if failed:
            raise _WorkFailedError(failed[0])
        times = [[float(word) for word in text.split()] for _, text in answers]
        return [max(of_iteration) for of_iteration in zip(*times, strict=True)]

    def dismiss(self) -> None:
        """Ends the ranks, and what started them, whatever they are doing."""
        self._signal(signal.SIGCONT)
        for rank in self._ranks:
            with contextlib.suppress(NotToBeHadError):
                rank.send("end")
        deadline = time.monotonic() + 3.0
        for process in self._job.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._job.processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(2.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        # Of those that an mpirun started, whatever is left.
        self._signal(signal.SIGKILL)
        for rank in self._ranks:
            rank.close()
        self.pids.clear()

    def _gather(self, meeting: socket.socket, ranks: int, deadline: float) -> None:
        found: dict[int, _Rank] = {}
        meeting.settimeout(0.2)
        while len(found) < ranks:
            if any(process.poll() not in (None, 0) for process in self._job.processes):
                raise NotToBeHadError(f"did not start: {self._last_words()}")
            if time.monotonic() > deadline:
                raise NotToBeHadError(
                    f"{ranks - len(found)} ranks did not start in time: {self._last_words()}"
                )
            try:
                connection, _ = meeting.accept()
            except TimeoutError:
                continue
            rank = _Rank(connection)
            self._ranks.append(rank)
            _, number, size, pid = rank.receive(deadline, self._last_words).split()
            self.pids.append(int(pid))
            if int(size) != ranks:
                raise NotToBeHadError(f"rank {number} found {size} ranks, not {ranks}")
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
                    raise NotToBeHadError(
                        told[0] if told else f"no answer in time; last words: {self._last_words()}"
                    )
                for key, _ in ready:
                    line = self._ranks[key.data].receive(deadline, self._last_words)
                    kind, _, text = line.partition(" ")
                    answers[key.data] = kind, text
                    selector.unregister(key.fileobj)
                    if kind == "error":  # what the others wait for may never come
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
        return lines[-1].strip()[:300] if lines else "none"


class _Rank:
    """The conversation with one rank; lines both ways."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def send(self, line: str) -> None:
        try:
            self.connection.sendall(line.encode() + b"\n")
        except OSError as error:
            raise NotToBeHadError(f"a rank is gone: {error}") from error

    def receive(self, deadline: float, last_words: Any) -> str:
        while b"\n" not in self._buffer:
            self.connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                received = self.connection.recv(1 << 16)
            except TimeoutError as error:
                raise NotToBeHadError(f"no answer in time; last words: {last_words()}") from error
            except OSError as error:
                raise NotToBeHadError(f"a rank died: {last_words()}") from error
            if not received:
                raise NotToBeHadError(f"a rank died: {last_words()}")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        self.connection.close()
