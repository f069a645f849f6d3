"""All ranks hear from each other when a pipeline is made, and at the end of each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

import perseus.torch.horovod as hvd
from perseus.pipeline.calls import Call, require_same_call
from perseus.pipeline.errors import StageError, one_line
from perseus_core import MismatchError

__all__ = ["Outcome", "step_outcome", "together"]

T = TypeVar("T")


def together(work: Callable[[], T], what: str = "make its part of the pipeline") -> list[T]:
    """Calls a function on each rank, and returns what it gave on all, in the order of the ranks.

    If it raises on some rank, that rank raises the same, and the others ValueError with its text.
    `what` says in that text what the function is for. All ranks must call this; pickle must take
    the results.
    """
    failure: Exception | None = None
    mine: Any = None
    try:
        mine = work()
    except Exception as error:  # the other ranks wait for this one
        failure = error
    text = None if failure is None else one_line(failure)
    everyone = hvd.allgather_object((text, mine))
    if failure is not None:
        raise failure
    for rank, (failed, _) in enumerate(everyone):
        if failed is not None:
            raise ValueError(f"rank {rank} could not {what}: {failed}")
    return [found for _, found in everyone]


class Numbers(Protocol):
    """A rank's knowledge of a call; 0 where it has none: see Prediction."""

    call: Call
    loss: float
    input_rows: int
    target_rows: int


class Outcome(NamedTuple):
    """How a step went on this rank, whose pipeline is replica number `replica` of `replicas`."""

    replica: int
    replicas: int
    step: Numbers
    failure: BaseException | None


def step_outcome(name: str, outcome: Outcome) -> list[float]:
    """Waits for the end of a call on all ranks, and returns the losses of the replicas.

    Raises ValueError on all ranks if they are in different calls. A rank's own ValueError or
    TypeError, such as for a batch that is too small, is raised there, and so is what is no
    Exception, such as KeyboardInterrupt; on all others, and for all else, StageError.
    """
    # An allreduce of so few bytes goes with the agreement on it. Bits of floats in integers: a loss
    # that is NaN must not upset PERSEUS_ALLREDUCE_NANCHECK.
    table = torch.zeros(outcome.replicas, 3, dtype=torch.int64)
    step = outcome.step
    table[outcome.replica] = torch.tensor([_bits(step.loss), step.input_rows, step.target_rows])
    calls = torch.zeros(hvd.size(), dtype=torch.int64)
    calls[hvd.rank()] = step.call.code
    has_failed = torch.tensor([outcome.failure is not None])
    said = torch.cat([table.flatten(), calls, has_failed])
    summed = hvd.allreduce(said, op=hvd.Sum, name=name)
    try:
        require_same_call(summed[table.numel() : -1].tolist())
    except ValueError as error:
        if isinstance(outcome.failure, Exception) or outcome.failure is None:
            raise error from outcome.failure
        raise outcome.failure from error
    table = summed[: table.numel()].view_as(table)
    for replica, (_, inputs, targets) in enumerate(table.tolist()):
        if inputs and targets and inputs != targets:  # which may be why a stage has failed
            raise ValueError(
                f"x has {inputs} rows at stage 0 and target has {targets} at the last stage, of "
                f"replica {replica}; they must have the same number"
            ) from outcome.failure
    if summed[-1]:
        _raise(outcome.failure)
    return [float(loss) for loss in table[:, 0].contiguous().view(torch.float64)]


class _Said(NamedTuple):
    """What a rank says of its failure; `is_heard`: it only knows of another's."""

    is_heard: bool
    text: str
    stage: int | None
    rank: int | None


def _raise(failure: BaseException | None) -> None:
    said = None
    if failure is not None:
        place = getattr(failure, "stage", None), getattr(failure, "rank", None)
        text = one_line(failure)
        if not isinstance(failure, Exception):
            text = f"rank {hvd.rank()} was interrupted: {text}"
        said = _Said(isinstance(failure, MismatchError), text, *place)
    everyone = [one for one in hvd.allgather_object(said) if one is not None]
    is_own = isinstance(failure, (StageError, TypeError, ValueError))
    if failure is not None and (is_own or not isinstance(failure, Exception)):
        raise failure
    # A rank that only heard of another's failure counts if there is no other.
    own = [one for one in everyone if not one.is_heard] or everyone
    text = "; ".join(one.text.removeprefix("StageError: ") for one in own)
    first = next((one for one in own if one.stage is not None), own[0])
    raise StageError(text, first.stage, first.rank)


def _bits(number: float) -> int:
    return int(torch.tensor(number, dtype=torch.float64).view(torch.int64))
