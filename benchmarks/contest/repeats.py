"""Repeats a work of contenders in turns, and counts how often it hangs, is wrong, or fails."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contest import ending
from contest.launch import Contender, Host, UnavailableError
from contest.team import NoAnswerError, Team, WorkFailedError


@dataclass
class Outcome:
    """The results of one contender's runs.

    `microseconds` has those of the slowest rank for each run that ended well. A turn that hung, was
    wrong or failed counts once, and none of its runs is among them.
    """

    microseconds: list[float] = field(default_factory=list)
    hangs: int = 0
    wrong: int = 0
    failed: int = 0
    last_words: str = ""  # of the last turn that did not end well

    @property
    def runs(self) -> int:
        return len(self.microseconds) + self.hangs + self.wrong + self.failed


class Repeats:
    """The ranks of some contenders, of which one contender's execute at a time.

    A context manager, for the main thread. Ranks that have hung or failed are started anew for
    their next turn.
    """

    def __init__(
        self, contenders: Sequence[Contender], ranks: int, hosts: Sequence[Host], limit: float
    ) -> None:
        """`limit`: seconds for one turn; the ranks have hung if it takes longer."""
        self._contenders = {contender.label: contender for contender in contenders}
        self._ranks = ranks
        self._hosts = list(hosts)
        self._limit = limit
        self._teams: dict[str, Team] = {}
        self._started = 0

    def __enter__(self) -> Repeats:
        self._signals = ExitStack()
        self._signals.enter_context(ending.by_exception())
        self._folder = tempfile.TemporaryDirectory(prefix="contest-")
        return self

    def __exit__(self, *_: object) -> None:
        with self._signals, ending.held_back():
            for team in self._teams.values():
                team.dismiss()
            self._teams.clear()
            self._folder.cleanup()

    def measure(
        self, work: str, runs: int, runs_of_turn: int, **options: Any
    ) -> dict[str, Outcome]:
        """Has every contender do `runs` runs of a work, in turns.

        Raises UnavailableError if a contender's ranks cannot be started.
        """
        outcomes = {label: Outcome() for label in self._contenders}
        while unfinished := [label for label, one in outcomes.items() if one.runs < runs]:
            for label in unfinished:
                of_turn = min(runs_of_turn, runs - outcomes[label].runs)
                self._turn(label, work, {**options, "iterations": of_turn}, outcomes[label])
        return outcomes

    def _turn(self, label: str, work: str, options: Mapping[str, Any], outcome: Outcome) -> None:
        team = self._team(label)
        words = [work, *(f"{name}={value}" for name, value in options.items())]
        try:
            times, _ = team.run(" ".join(words), self._limit)
            outcome.microseconds += times
            return
        except NoAnswerError as error:
            outcome.hangs += 1
            outcome.last_words = str(error)
        except WorkFailedError as error:
            is_wrong = str(error).startswith("ArithmeticError")
            outcome.wrong += is_wrong
            outcome.failed += not is_wrong
            outcome.last_words = str(error)
        except UnavailableError as error:
            outcome.failed += 1
            outcome.last_words = str(error)
        self._teams.pop(label).dismiss()

    def _team(self, label: str) -> Team:
        if label not in self._teams:
            folder = Path(self._folder.name) / str(self._started)
            folder.mkdir()
            self._started += 1
            self._teams[label] = Team(
                self._contenders[label], self._ranks, self._hosts, folder, 60.0
            )
        return self._teams[label]
