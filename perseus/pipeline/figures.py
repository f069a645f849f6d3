"""How long a stage computes and waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from perseus.pipeline.schedules import Action

__all__ = ["Figures", "Span"]

#: An action, and when it began and ended, in seconds of time.monotonic.
Span = tuple[Action, float, float]


@dataclass
class Figures:
    """Seconds of one stage on this rank, added up over steps."""

    computed: float = 0.0
    waited_for_input: float = 0.0
    waited_for_output: float = 0.0
    #: of the last step
    spans: list[Span] = field(default_factory=list)

    @contextmanager
    def computing(self, action: Action) -> Iterator[None]:
        begin = time.monotonic()
        yield
        end = time.monotonic()
        self.computed += end - begin
        self.spans.append((action, begin, end))

    @contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.waited_for_input += time.monotonic() - begin

    @contextmanager
    def waiting_for_output(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.waited_for_output += time.monotonic() - begin
