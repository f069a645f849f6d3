"""The loop of one rank: takes chunks, trains its stages on them, and hands results on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from perseus.common.exceptions import HorovodInternalError
from perseus.pipeline.layerwise.chunks import Chunk
from perseus.pipeline.layerwise.neighbours import Neighbours
from perseus.pipeline.layerwise.plan import Plan
from perseus.pipeline.layerwise.stage import Stage
from perseus.pipeline.layerwise.times import StageTimes

__all__ = ["Save", "StageRaised", "Worker"]

#: Called with the number of a stage and its state; see LayerWise.train.
Save = Callable[[int, dict[str, Any]], object]


class StageRaised(Exception):
    """A stage, or the data or the saving of one, raised the exception that is the cause."""

    def __init__(self, stage: int, what: str) -> None:
        super().__init__(what)
        self.stage = stage
        self.what = what


@dataclass
class Worker:
    """The stages of one rank, numbered from `first` on, and what they work with.

    Attributes:
      data: the chunks of the stream; used on the first rank only.
      begin: the number of the first chunk that is still to be worked on.
      save, save_every: see LayerWise.train; None: nothing is saved.
    """

    stages: Sequence[Stage]
    first: int
    times: Sequence[StageTimes]
    plan: Plan
    neighbours: Neighbours
    data: Iterator[Chunk] | None
    begin: int
    save: Save | None
    save_every: int | None

    def run(self) -> None:
        """Works on all chunks of this rank's stages."""
        for number in range(self.begin, self.plan.total):
            self._save_before(number)
            # No result is computed that nobody needs.
            if number < self.plan.first(self.first):
                continue
            self._pass_on(self._pass_through(self._next(number)))

    def _save_before(self, number: int) -> None:
        if self.save is None or self.save_every is None:
            return
        if number == self.begin or number % self.save_every:
            return
        for index, stage in enumerate(self.stages, self.first):
            with _Naming(index, f"could not be saved before chunk {number}"):
                self.save(index, {"chunk": number, "stage": stage.state_dict()})

    def _next(self, number: int) -> Chunk:
        began = time.perf_counter()
        if self.neighbours.is_first:
            assert self.data is not None
            self.neighbours.look()
            with _Naming(self.first, f"got no data for chunk {number}"):
                chunk = next(self.data)
        else:
            chunk = self.neighbours.get()
        self.times[0].waiting_for_input += time.perf_counter() - began
        return chunk

    def _pass_through(self, chunk: Chunk) -> Chunk | None:
        """Takes a chunk through the stages of this rank that have begun.

        Returns what the next rank gets, or None if its first stage has not begun.
        """
        for offset, stage in enumerate(self.stages):
            index = self.first + offset
            if chunk.number < self.plan.first(index):
                return None
            with _Clock(self.times[offset]), _Naming(index, f"failed at chunk {chunk.number}"):
                chunk = self._work(stage, index, chunk)
            self.neighbours.look()
        is_wanted = chunk.number >= self.plan.first(self.first + len(self.stages))
        return chunk if is_wanted else None

    def _work(self, stage: Stage, index: int, chunk: Chunk) -> Chunk:
        """Lets one stage train on a chunk, or only compute once it has trained on its share."""
        results = []
        trains = self.plan.trains(index, chunk.number)
        if trains:
            stage.follow({name: value.to(stage.device) for name, value in chunk.copied.items()})
        for position, (batch, target) in enumerate(zip(chunk.batches, chunk.targets, strict=True)):
            batch = batch.to(stage.device)
            if trains:
                stage.progress(self.plan.share(index, chunk.number, position))
                results.append(_checked(stage.train(batch, target), batch))
            else:
                results.append(_checked(stage.forward(batch), batch))
        copied = {name: value.clone() for name, value in stage.copied().items()}
        return Chunk(chunk.number, results, chunk.targets, copied)

    def _pass_on(self, chunk: Chunk | None) -> None:
        if chunk is None or self.neighbours.is_last:
            return
        began = time.perf_counter()
        self.neighbours.wait_for_room()
        self.times[-1].waiting_for_output += time.perf_counter() - began
        last = self.first + len(self.stages) - 1
        with _Clock(self.times[-1], is_new=False), _Naming(last, f"failed at chunk {chunk.number}"):
            self.neighbours.put(chunk)


def _checked(result: Any, batch: torch.Tensor) -> torch.Tensor:
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"its result is {type(result).__name__}; it must be a tensor")
    if result.shape[:1] != batch.shape[:1]:
        raise ValueError(
            f"its result has shape {tuple(result.shape)}; it must have the batch's "
            f"{len(batch)} rows"
        )
    return result


class _Naming:
    """Turns any exception but those of the engine into a StageRaised that names the stage."""

    def __init__(self, stage: int, what: str) -> None:
        self._stage, self._what = stage, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, HorovodInternalError):
            text = f"{self._what}: {type(error).__name__}: {error}"
            raise StageRaised(self._stage, text) from error


class _Clock:
    """Adds the time within it to the work on the current chunk of a stage."""

    def __init__(self, times: StageTimes, *, is_new: bool = True) -> None:
        self._times, self._is_new = times, is_new

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        wall = time.perf_counter() - self._began[0]
        processor = time.thread_time() - self._began[1]
        if self._is_new:
            self._times.chunks.append(wall)
            self._times.processor.append(processor)
        else:
            self._times.chunks[-1] += wall
            self._times.processor[-1] += processor
