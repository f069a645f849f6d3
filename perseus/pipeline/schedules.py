"""In which order each rank of a pipeline does its work.

A schedule is a function of three numbers: stages, ranks and micro-batches. It gives, for each rank,
the list of its actions. Stage s is on rank s % ranks. Messages follow from the actions: a forward
of stage s sends to stage s + 1, and a backward of it to stage s - 1.

The bubble is the part of a step in which a rank computes nothing. The formulas hold for stages that
take equal time, and messages that take none. simulation.py plays a schedule with any times.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["FORWARD_ONLY", "SCHEDULES", "Action", "Kind", "Order", "Schedule", "find_schedule"]


class Kind(enum.Enum):
    """A part of the work on one micro-batch in one stage."""

    FORWARD = "F"
    BACKWARD = "B"  # both parts below at once
    INPUT = "I"  # the gradient of the stage's input, which the stage before waits for
    WEIGHT = "W"  # the gradients of the stage's parameters, which nobody waits for


class Action(NamedTuple):
    """A part of the work, in which stage, on which micro-batch of the step, from 0 on."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.stage}.{self.microbatch}"


#: The actions of each rank.
Order = list[list[Action]]


@dataclass(frozen=True)
class Schedule:
    """A schedule and what is known of it. Functions take stages, ranks and micro-batches.

    Attributes:
      order: makes the actions.
      bubble: the part of a step that is bubble, 0 to 1.
      held: the most micro-batches of a stage, counted over all stages of the rank, whose
        activations the busiest rank keeps at once.
      refusal: why these numbers do not go together; empty if they do.
    """

    name: str
    order: Callable[[int, int, int], Order]
    bubble: Callable[[int, int, int], float]
    held: Callable[[int, int, int], int]
    refusal: Callable[[int, int, int], str]


def gpipe(stages: int, ranks: int, microbatches: int) -> Order:
    """All forwards, then all backwards (Huang et al. 2019, GPipe, figure 2c)."""
    return [_one_stage(rank, microbatches, microbatches) for rank in range(ranks)]


def one_forward_one_backward(stages: int, ranks: int, microbatches: int) -> Order:
    """A rank with n ranks after it does n forwards, then forwards and backwards in turn
    (Narayanan et al. 2019, PipeDream, figure 4; with a flush at the end of each step)."""
    return [_one_stage(rank, ranks - rank - 1, microbatches) for rank in range(ranks)]


def eager_one_forward_one_backward(stages: int, ranks: int, microbatches: int) -> Order:
    """1F1B with twice as many forwards ahead (Zhuang et al. 2022, On Optimizing the Communication
    of Model Parallelism, section 4, eager-1F1B).

    In 1F1B each micro-batch comes just when it is needed, so every message delays the step. Here a
    rank has one more in hand for each rank after it, and messages travel while it computes.
    """
    return [_one_stage(rank, 2 * (ranks - rank - 1), microbatches) for rank in range(ranks)]


def interleaved(stages: int, ranks: int, microbatches: int) -> Order:
    """1F1B with several stages a rank (Narayanan et al. 2021, Megatron-LM, figure 4).

    Micro-batches go through a rank's stages in groups of as many as there are ranks.
    """
    each = stages // ranks
    order = []
    for rank in range(ranks):
        forwards, backwards = [], []
        for number in range(microbatches * each):
            group, place = divmod(number, ranks * each)
            turn, within = divmod(place, ranks)
            microbatch = group * ranks + within
            forwards.append(Action(Kind.FORWARD, turn * ranks + rank, microbatch))
            stage = (each - 1 - turn) * ranks + rank
            backwards.append(Action(Kind.BACKWARD, stage, microbatch))
        ahead = min(2 * (ranks - rank - 1) + (each - 1) * ranks, len(forwards))
        order.append(_in_turns(forwards, backwards, ahead))
    return order


def zero_bubble(stages: int, ranks: int, microbatches: int) -> Order:
    """1F1B with backward in two parts (Qi et al. 2023, Zero Bubble, ZB-H1, figure 2).

    Gradients of parameters wait for the end of the step, where a rank has nothing else to do: on
    rank r those of r micro-batches. So every rank keeps the activations of as many micro-batches
    as rank 0 does in 1F1B.
    """
    order = []
    for rank in range(ranks):
        late = []
        written = 0
        for action in one_forward_one_backward(stages, ranks, microbatches)[rank]:
            if action.kind is Kind.FORWARD:
                late.append(action)
                continue
            late.append(action._replace(kind=Kind.INPUT))
            if action.microbatch - written >= rank:
                late.append(Action(Kind.WEIGHT, rank, written))
                written += 1
        late += [Action(Kind.WEIGHT, rank, number) for number in range(written, microbatches)]
        order.append(late)
    return order


def forward_only(stages: int, ranks: int, microbatches: int) -> Order:
    """Predictions: each micro-batch through all stages."""
    return [
        [
            Action(Kind.FORWARD, stage, number)
            for number in range(microbatches)
            for stage in range(rank, stages, ranks)
        ]
        for rank in range(ranks)
    ]


def _one_stage(stage: int, ahead: int, microbatches: int) -> list[Action]:
    """Returns forwards and backwards in turns, after so many forwards ahead."""
    forwards = [Action(Kind.FORWARD, stage, number) for number in range(microbatches)]
    backwards = [Action(Kind.BACKWARD, stage, number) for number in range(microbatches)]
    return _in_turns(forwards, backwards, min(ahead, microbatches))


def _in_turns(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> list[Action]:
    order = list(forwards[:ahead])
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + list(backwards[len(forwards) - ahead :])


def _fill_and_drain(stages: int, ranks: int, microbatches: int) -> float:
    """(p - 1) / (v m + p - 1), where v is the number of stages on each of the p ranks."""
    return (ranks - 1) / (microbatches * stages // ranks + ranks - 1)


def _without_weights(stages: int, ranks: int, microbatches: int) -> float:
    """(p - 1)(F + I - W) / (m(F + I + W) + (p - 1)(F + I - W)), for F = I = W."""
    return (ranks - 1) / (3 * microbatches + ranks - 1)


def _interleaved_held(stages: int, ranks: int, microbatches: int) -> int:
    each = stages // ranks
    return min(2 * (ranks - 1) + (each - 1) * ranks + 1, microbatches * each)


def _one_stage_a_rank(stages: int, ranks: int, microbatches: int) -> str:
    if stages == ranks:
        return ""
    return (
        f"the pipeline has {stages} stages on {ranks} ranks; it must have one stage a rank. "
        'schedule="interleaved" takes several'
    )


def _whole_groups(stages: int, ranks: int, microbatches: int) -> str:
    if stages % ranks or stages == ranks > 1:
        return (
            f"the pipeline has {stages} stages on {ranks} ranks; it must have two or more stages "
            'on each rank, the same number. schedule="1f1b" takes one'
        )
    if microbatches % ranks:
        return (
            f"microbatches is {microbatches}; it must be a multiple of the pipeline's {ranks} ranks"
        )
    return ""


SCHEDULES = {
    one.name: one
    for one in (
        Schedule("gpipe", gpipe, _fill_and_drain, lambda _s, _p, m: m, _one_stage_a_rank),
        Schedule(
            "1f1b",
            one_forward_one_backward,
            _fill_and_drain,
            lambda _s, p, m: min(p, m),
            _one_stage_a_rank,
        ),
        Schedule(
            "eager-1f1b",
            eager_one_forward_one_backward,
            _fill_and_drain,
            lambda _s, p, m: min(2 * p - 1, m),
            _one_stage_a_rank,
        ),
        Schedule("interleaved", interleaved, _fill_and_drain, _interleaved_held, _whole_groups),
        Schedule(
            "zero-bubble",
            zero_bubble,
            _without_weights,
            lambda _s, p, m: min(p, m),
            _one_stage_a_rank,
        ),
    )
}
_OTHER_NAMES = {"interleaved-1f1b": "interleaved", "zb-h1": "zero-bubble"}

#: Schedule of predictions; any number of stages on a rank.
FORWARD_ONLY = Schedule(
    "forward", forward_only, _fill_and_drain, lambda _s, _p, m: 0, lambda _s, _p, m: ""
)


def find_schedule(name: str, stages: int, ranks: int, microbatches: int) -> Schedule:
    """Returns the schedule of this name; ValueError if the numbers do not suit it."""
    lowered = name.lower() if isinstance(name, str) else name
    found = SCHEDULES.get(_OTHER_NAMES.get(lowered, lowered))
    if found is None:
        raise ValueError(f"schedule is {name!r}; it must be one of {', '.join(SCHEDULES)}")
    refusal = found.refusal(stages, ranks, microbatches)
    if not refusal and microbatches < ranks:
        refusal = (
            f"microbatches is {microbatches}; it must be at least {ranks}, one for each rank of "
            "the pipeline, since the others would never be busy at once"
        )
    if refusal:
        raise ValueError(f"schedule {found.name!r}: {refusal}")
    return found
