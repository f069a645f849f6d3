"""LayerWise: a list of stages, trained at once by the ranks that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.pipeline.layerwise import agreement, chunks, failures
from perseus.pipeline.layerwise.agreement import Outcome, Proposal, check_stages, stage_name
from perseus.pipeline.layerwise.chunks import Batches
from perseus.pipeline.layerwise.collecting import collect_parameters
from perseus.pipeline.layerwise.failures import Failure
from perseus.pipeline.layerwise.links import NeighbourFailed
from perseus.pipeline.layerwise.neighbours import Neighbours
from perseus.pipeline.layerwise.plan import Plan, assign, make_plan
from perseus.pipeline.layerwise.stage import Stage
from perseus.pipeline.layerwise.team import Team
from perseus.pipeline.layerwise.times import StageTimes
from perseus.pipeline.layerwise.worker import Save, StageRaised, Worker
from perseus_core import AbortedError
from perseus_core.arguments import real_number

__all__ = ["LayerWise"]


class LayerWise:
    """Stages that train at once, each on what the one before it has made of the data.

    Each rank makes the same list of stages and trains a contiguous block of it. One process, with
    or without init, trains them all, chunk by chunk; the result is the same, bit for bit, if
    PyTorch computes with the same number of threads.

    Args:
      stages: what computes, from the data upwards. See Stage, RBM, Autoencoder and LocalLoss.
      chunk: mini-batches in a chunk, after which results and copies go forward.
      delay: a stage begins after this share of the chunks of the one before it, from 0 to 1. The
        later it begins, the less what it learns from still changes, and the longer all takes. With
        1, a stage begins when the one before has ended, as in greedy training.
      room: chunks that may be under way between two ranks: sent, and not begun by the receiver. A
        rank waits before it sends more.
      owners: for each stage, the position of its rank in the process set, in contiguous blocks.
        None: blocks as even as they can be.
      process_set: the ranks that train.

    Attributes:
      owners: for each stage, its rank of the world.

    Raises ValueError and TypeError for arguments that make no sense and for stages that do not fit
    together.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        chunk: int = 1,
        delay: float = 0.0,
        room: int = 2,
        owners: Sequence[int] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self.stages = list(stages)
        check_stages(self.stages)
        self.chunk = _at_least_1("chunk", chunk)
        self.room = _at_least_1("room", room)
        self.delay = real_number("delay", delay)
        if not 0 <= self.delay <= 1:
            raise ValueError(f"delay is {delay}; it must be from 0 to 1")
        self._team = Team.of(process_set)
        places = assign(len(self.stages), len(self._team.ranks), owners)
        self.owners = [self._team.ranks[place] for place in places]
        self._chunks = {number: 0 for number in self._own()}

    def _own(self) -> list[int]:
        """The numbers of the stages of this rank."""
        return [number for number, owner in enumerate(self.owners) if owner == self._team.rank]

    def train(
        self,
        batches: Batches = None,
        epochs: int = 1,
        *,
        save: Save | None = None,
        save_every: int | None = None,
    ) -> list[StageTimes]:
        """Trains all stages on the data. All ranks call it.

        Args:
          batches: mini-batches: a list, a DataLoader, or anything else that has a length and can be
            gone through once an epoch, or a function of the epoch, counted from 0, that returns
            such. A mini-batch is a tensor [rows, ...] or a pair of it and its target. Only the rank
            of stage 0 needs it; on others it may be None.
          epochs: how often each stage goes through the data.
          save: called with the number of a stage of this rank and its state, before each chunk
            whose number is a multiple of `save_every`. load takes such states.

        Returns how long each stage worked and waited, for all stages, on every rank.

        Raises, on every rank, StageError if a stage, the data or `save` raised an exception;
        StageLostError if a rank died or left; ValueError, before anything is trained, if the ranks
        have been given different stages or options.
        """
        plan, begin = self._agree(batches, epochs, save, save_every)
        times = [
            StageTimes(number, stage_name(number, self.stages[number]), self._team.rank)
            for number in self._own()
        ]
        failure, cause = self._run(plan, begin, batches, times, (save, save_every))
        try:
            outcomes = self._team.gather(Outcome(failure, times))
        except AbortedError as error:
            raise (failure or self._lost(error)).error() from cause or error
        failed = [outcome.failure for outcome in outcomes if outcome.failure]
        if failed:
            # All ranks name the same stage, if several have failed.
            named = min(failed, key=lambda one: one.stage)
            raise named.error() from cause if named == failure else None
        self._chunks = {number: 0 for number in self._own()}
        return [one for outcome in outcomes for one in outcome.times]

    def _agree(
        self, batches: Batches, epochs: int, save: Save | None, save_every: int | None
    ) -> tuple[Plan, int]:
        """Returns the plan and the chunk to begin with, after all ranks have agreed on them."""
        problem, per_epoch = None, None
        descriptions: list[str] = []
        try:
            descriptions = [stage.describe() for stage in self.stages]
            _check_training(epochs, save, save_every)
            if self.owners[0] == self._team.rank:
                per_epoch = chunks.count(batches)
        except Exception as error:  # the code of the data and the stages may raise anything
            problem = f"{type(error).__name__}: {error}"
            if len(self._team.ranks) == 1:
                raise
        proposal = Proposal(
            rank=self._team.rank,
            problem=problem,
            stages=descriptions,
            owners=self.owners,
            options={
                "chunk": self.chunk,
                "delay": self.delay,
                "room": self.room,
                "epochs": epochs,
                "save_every": save_every,
            },
            chunks=self._chunks,
            per_epoch=per_epoch,
        )
        try:
            proposals = self._team.gather(proposal)
        except AbortedError as error:
            raise self._lost(error).error() from error
        per_epoch, begin = agreement.agreed(proposals)
        plan = make_plan(per_epoch, epochs, self.chunk, self.delay, len(self.stages))
        if begin > plan.total:
            raise ValueError(f"the states are of chunk {begin}; there are {plan.total} chunks")
        return plan, begin

    def _run(
        self,
        plan: Plan,
        begin: int,
        batches: Batches,
        times: list[StageTimes],
        saving: tuple[Save | None, int | None],
    ) -> tuple[Failure | None, BaseException | None]:
        """Trains the stages of this rank. Returns the failure, if any, and what caused it here."""
        own = self._own()
        neighbours = self._neighbours()
        data = chunks.of_data(batches, plan, begin) if neighbours.is_first else None
        stages = [self.stages[number] for number in own]
        self._chunks = {number: agreement.UNKNOWN for number in own}  # until it has ended well
        worker = Worker(stages, own[0], times, plan, neighbours, data, begin, *saving)
        failure: Failure | None = None
        cause: BaseException | None = None
        try:
            worker.run()
        except StageRaised as error:
            name = stage_name(error.stage, self.stages[error.stage])
            text = f"{name} on rank {self._team.rank} {error.what}"
            failure, cause = Failure(text, error.stage, self._team.rank), error.__cause__
        except NeighbourFailed as error:
            failure = error.failure
        except AbortedError as error:
            failure, cause = self._lost(error), error
        try:
            return neighbours.close(failure), cause
        except AbortedError as error:
            return failure or self._lost(error), cause or error

    def _neighbours(self) -> Neighbours:
        ranks, place = self._team.ranks, self._team.place
        return Neighbours(
            before=ranks[place - 1] if place > 0 else None,
            after=ranks[place + 1] if place + 1 < len(ranks) else None,
            process_set=self._team.set_number,
            room=self.room,
        )

    def _lost(self, error: AbortedError) -> Failure:
        names = [stage_name(number, stage) for number, stage in enumerate(self.stages)]
        return failures.lost(error, names, self.owners)

    def load(self, stage: int, state: dict[str, Any]) -> None:
        """Restores a stage from what `save` was given. The next train goes on from there.

        Each rank loads the states of its own stages; those of others are ignored. Before train, all
        stages must have been loaded from states that were saved before the same chunk.
        """
        if not 0 <= stage < len(self.stages):
            raise ValueError(f"stage is {stage}; it must be from 0 to {len(self.stages) - 1}")
        if stage in self._chunks:
            self.stages[stage].load_state_dict(state["stage"])
            self._chunks[stage] = state["chunk"]

    def collect(self, root: int | None = None) -> None:
        """Copies the parameters of all stages to every rank, or to one. All ranks call it.

        Args:
          root: a rank of the world that gets them; None: all do.
        """
        if root is not None and root not in self._team.ranks:
            raise ValueError(f"root is {root}; it must be one of the ranks {self._team.ranks}")
        try:
            collect_parameters(self.stages, self.owners, self._team, root)
        except AbortedError as error:
            raise self._lost(error).error() from error

    def network(self, *more: torch.nn.Module) -> torch.nn.Sequential:
        """Returns the stages as one network, with further layers above, such as a classifier.

        On a rank that has not collected the parameters, those of other ranks' stages are still the
        initial ones.
        """
        return torch.nn.Sequential(*[stage.module() for stage in self.stages], *more)


def _check_training(epochs: int, save: Save | None, save_every: int | None) -> None:
    _at_least_1("epochs", epochs)
    if save_every is not None:
        _at_least_1("save_every", save_every)
    if (save is None) != (save_every is None):
        raise ValueError("save and save_every must be given together")


def _at_least_1(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be a whole number")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be 1 or more")
    return value
