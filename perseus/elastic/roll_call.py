"""Finds out which workers say nothing, while others wait for them to meet anew.

Ranks of a world notice when one of them is stopped. Those that have left it for the next one do
not, and would wait for a rank that is never going to ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perseus.elastic.workers import Worker
from perseus.run.ending import NEVER

__all__ = ["RollCall"]

# So long after an answer a worker is asked again.
_SECONDS_BETWEEN_CALLS = 1.0


@dataclass
class _Call:
    worker: Worker
    asked: float  # when
    answered: bool = False


class RollCall:
    """Not thread-safe.

    Args:
      patience: the seconds that a worker may take to answer.
      ask: asks a worker, which answers from a thread of its own, whatever its program does.
    """

    def __init__(
        self, patience: float, clock: Callable[[], float], ask: Callable[[Worker], None]
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._ask = ask
        self._calls: dict[int, _Call] = {}  # by the workers' numbers

    def await_workers(self, workers: Iterable[Worker]) -> None:
        """Sets whom the others wait for now."""
        awaited = {worker.number: worker for worker in workers}
        self._calls = {n: call for n, call in self._calls.items() if n in awaited}
        for number in awaited.keys() - self._calls.keys():
            self._call(awaited[number])

    def answered(self, number: int) -> None:
        """A worker has answered."""
        if number in self._calls:
            self._calls[number].answered = True

    def next_deadline(self) -> float | None:
        """Returns when `silent_workers` must be called again, by the clock; None for never."""
        return min((self._due(call) for call in self._calls.values()), default=None)

    def silent_workers(self) -> list[Worker]:
        """Returns workers that have not answered in time, once each; asks the others again."""
        now = self._clock()
        due = [call for call in self._calls.values() if now >= self._due(call)]
        for call in due:
            if call.answered:
                self._call(call.worker)
            else:
                call.asked = NEVER
        return [call.worker for call in due if not call.answered]

    def _call(self, worker: Worker) -> None:
        self._calls[worker.number] = _Call(worker, self._clock())
        self._ask(worker)

    def _due(self, call: _Call) -> float:
        return call.asked + (_SECONDS_BETWEEN_CALLS if call.answered else self._patience)
