"""Plays a schedule with given times, and so finds whether it works and how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perseus.pipeline.schedules import Action, Kind, Order

__all__ = ["Played", "needs", "play"]


@dataclass(frozen=True)
class Played:
    """What came of it; times are in the unit of the given ones.

    Attributes:
      spans: when each action begins and ends.
      held: for each rank, the most activations that it kept at once: those of one stage and one
        micro-batch count as one.
      bubble: the part of all ranks' time in which they did nothing, 0 to 1.
    """

    spans: dict[Action, tuple[float, float]]
    held: list[int]
    bubble: float

    @property
    def length(self) -> float:
        return max((end for _, end in self.spans.values()), default=0.0)


def play(
    order: Order, seconds: Callable[[Action], float] = lambda action: 1.0, message: float = 0.0
) -> Played:
    """Plays the actions of all ranks. Sends wait for nobody, and take `message` to arrive.

    Raises ValueError if an action comes twice, or needs another that never comes, or that comes
    only after ranks have waited for each other.
    """
    homes = _homes(order)
    last = max((action.stage for action in homes), default=0)
    spans: dict[Action, tuple[float, float]] = {}
    at = [0] * len(order)
    clock = [0.0] * len(order)
    while True:
        moved = False
        for rank, actions in enumerate(order):
            while at[rank] < len(actions):
                action = actions[at[rank]]
                inputs = [_found(need, homes, action) for need in needs(action, last)]
                if any(need not in spans for need in inputs):
                    break
                ready = [
                    spans[need][1] + (message if homes[need] != rank else 0.0) for need in inputs
                ]
                begin = max([clock[rank], *ready])
                clock[rank] = begin + seconds(action)
                spans[action] = begin, clock[rank]
                at[rank] += 1
                moved = True
        if not moved:
            break
    stuck = [actions[at[rank]] for rank, actions in enumerate(order) if at[rank] < len(actions)]
    if stuck:
        raise ValueError(f"these actions wait for each other: {', '.join(map(str, stuck))}")
    busy = sum(end - begin for begin, end in spans.values())
    length = max(clock, default=0.0)
    bubble = 1 - busy / (length * len(order)) if length else 0.0
    return Played(spans, [_held(actions) for actions in order], bubble)


def needs(action: Action, last: int) -> list[tuple[Action, ...]]:
    """Returns what must be done before an action: for each need, the actions any of which does.

    last: the last stage.
    """
    kind, stage, number = action
    if kind is Kind.FORWARD:
        return [(Action(Kind.FORWARD, stage - 1, number),)] if stage else []
    if kind is Kind.WEIGHT:
        return [(Action(Kind.INPUT, stage, number),)]
    found: list[tuple[Action, ...]] = [(Action(Kind.FORWARD, stage, number),)]
    if stage < last:
        found.append(
            (Action(Kind.BACKWARD, stage + 1, number), Action(Kind.INPUT, stage + 1, number))
        )
    return found


def _homes(order: Order) -> dict[Action, int]:
    homes: dict[Action, int] = {}
    for rank, actions in enumerate(order):
        for action in actions:
            if action in homes:
                raise ValueError(f"{action} comes twice")
            homes[action] = rank
    return homes


def _found(need: tuple[Action, ...], homes: dict[Action, int], action: Action) -> Action:
    for one in need:
        if one in homes:
            return one
    raise ValueError(f"{action} needs {' or '.join(map(str, need))}, which is in no list")


def _held(actions: list[Action]) -> int:
    held = most = 0
    for action in actions:
        if action.kind is Kind.FORWARD:
            held += 1
        elif action.kind is not Kind.INPUT:
            held -= 1
        most = max(most, held)
    return most
