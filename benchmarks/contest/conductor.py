"""Gives contenders their turns, and collects times.

Every contender's ranks live for the whole run, but only those of the contender in turn execute. The
others are stopped by SIGSTOP, so that a contender that polls takes no core from another's turn.
Turns are interleaved, so that changes on the machine affect all contenders alike.
"""

from __future__ import annotations

import shlex
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contest import core_distance, ending
from contest.launch import KNOWN, Contender, Host, UnavailableError
from contest.team import Team, WorkFailedError


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that `percent` of the values stay below."""
    return sorted(values)[round((len(values) - 1) * percent / 100)]


@dataclass
class Times:
    """One contender's times at one work: for each iteration the slowest rank's, in microseconds.

    `reason` says why there are none, or no more than these; `note` says how the contender did it.
    `core_distances` are the nanoseconds between processors before and after.
    """

    microseconds: list[float] = field(default_factory=list)
    reason: str | None = None
    note: str = ""
    core_distances: tuple[float | None, float | None] = (None, None)

    @property
    def median(self) -> float | None:
        return statistics.median(self.microseconds) if self.microseconds else None

    def percentile(self, percent: float) -> float | None:
        return percentile(self.microseconds, percent) if self.microseconds else None


class Conductor:
    """Starts contenders and lets them work in turns; a context manager.

        with Conductor(["perseus", variant("perseus", "8 streams",
                        PERSEUS_ALLREDUCE_STREAMS="8"), "torch gloo"], ranks=2) as contest:
            times = contest.measure("collective.allreduce", seconds=0.5, elements=1 << 20)
            times["8 streams"].median

    contenders: names from launch.KNOWN, or Contenders (such as variants of those); labels must
    differ. ranks: how many each contender has. hosts: where they run, in blocks; this host by
    default. time_out: seconds allowed for one turn, or for the start of a contender. distance:
    "near" or "far", if cases are to be measured in that state of the processors.

    A contender that cannot start, dies, or does not answer in time drops out: `absent` gives its
    reason, as do the Times of every later measurement. Only the main thread may use this class.
    """

    def __init__(
        self,
        contenders: Iterable[str | Contender],
        ranks: int,
        hosts: Sequence[Host] | None = None,
        time_out: float = 60.0,
        distance: str | None = None,
    ) -> None:
        listed = [KNOWN[one] if isinstance(one, str) else one for one in contenders]
        self.contenders = {contender.label: contender for contender in listed}
        if len(self.contenders) != len(listed):
            raise ValueError("two contenders have the same label")
        self.ranks = ranks
        self.hosts = list(hosts or [Host()])
        self.time_out = time_out
        self._distance = core_distance.Wanted(distance)
        self.absent: dict[str, str] = {}
        self._teams: dict[str, Team] = {}

    def __enter__(self) -> Conductor:
        # Stopped ranks would outlive a conductor that exits without ending them.
        self._signals = ExitStack()
        self._signals.enter_context(ending.by_exception())
        self._folder = tempfile.TemporaryDirectory(prefix="contest-")
        try:
            for number, contender in enumerate(self.contenders.values()):
                self._enlist(contender, Path(self._folder.name) / str(number))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._signals, ending.held_back():
            for team in self._teams.values():
                team.dismiss()
            self._teams.clear()
            self._folder.cleanup()

    def measure(
        self,
        work: str,
        *,
        turns: int = 5,
        iterations: int | Mapping[str, int] | None = None,
        seconds: float = 0.3,
        only: Iterable[str] | None = None,
        once_more: bool = True,
        **options: Any,
    ) -> dict[str, Times]:
        """Lets every contender, or those in `only`, do `work` in `turns` interleaved turns.

        work: "module.function" of contest/works; `options` are its keyword arguments: numbers or
        strings. A turn has `iterations` iterations if that is given, for all or by label. Otherwise
        it takes about `seconds`; a trial determines how many iterations that is (3 to 2000) for
        each contender. If a work fails on all ranks, only that work has failed: the contender
        stays. If the distance of the processors changes meanwhile, all of it is done once more,
        unless `once_more` is false, as where only a first time counts.
        """
        labels = list(self.contenders if only is None else only)
        results = {label: Times(reason=self.absent.get(label)) for label in labels}
        given = iterations if isinstance(iterations, Mapping) else dict.fromkeys(labels, iterations)
        counts = {}
        for label in labels:
            if label not in self.absent:
                counts[label] = given[label] or self._trial(
                    label, work, seconds, options, results[label]
                )
        for _ in range(2 if once_more else 1):
            for result in results.values():
                if result.reason is None:  # else no more is measured
                    result.microseconds.clear()
            before = self._distance.wait()
            for label in labels * turns:
                if results[label].reason is None:
                    self._turn(
                        label, work, {**options, "iterations": counts[label]}, results[label]
                    )
            after = core_distance.look()
            for result in results.values():
                result.core_distances = (before, after)
            if not core_distance.has_changed(before, after):
                break
        return results

    def pids(self, label: str) -> list[int]:
        """Returns the processes of a contender's ranks; none if it has dropped out."""
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
            self._teams[contender.label] = Team(
                contender, self.ranks, self.hosts, folder, self.time_out
            )
        except UnavailableError as error:
            self.absent[contender.label] = str(error)

    def _turn(self, label: str, work: str, options: dict[str, Any], result: Times) -> None:
        words = [work, *(f"{name}={shlex.quote(str(value))}" for name, value in options.items())]
        try:
            times, result.note = self._teams[label].run(" ".join(words), self.time_out)
            result.microseconds += times
        except WorkFailedError as error:
            result.reason = str(error)
        except UnavailableError as error:
            result.reason = self.absent[label] = str(error)
            self._teams.pop(label).dismiss()
