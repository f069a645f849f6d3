"""Pipeline: a model whose stages are on several ranks."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import perseus.torch.horovod as hvd
from perseus.pipeline import checkpoint
from perseus.pipeline.agreement import Outcome, step_outcome, together
from perseus.pipeline.calls import Call
from perseus.pipeline.errors import lost
from perseus.pipeline.exchange import Exchange
from perseus.pipeline.figures import Figures, Span
from perseus.pipeline.plan import Arguments, agree_on_plan
from perseus.pipeline.report import Report, StageFigures
from perseus.pipeline.same import require_same
from perseus.pipeline.stage import Stage
from perseus.pipeline.step import Meeting, Prediction, Step
from perseus.pipeline.tied import Entry, TiedWeights
from perseus.pipeline.traced import TracedStage
from perseus.pipeline.traffic import Traffic
from perseus_core import WORLD, AbortedError, process_sets
from perseus_core.arguments import whole_number
from perseus_core.names import next_object

__all__ = ["Pipeline"]


class Pipeline:
    """Trains a model whose stages are on the ranks of a job.

        pipeline = Pipeline(model, split=["3", "6"], loss_fn=F.cross_entropy, microbatches=8)
        optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
        for x, target in batches:
            optimizer.zero_grad()
            loss = pipeline.step(x, target)
            optimizer.step()

    Call hvd.init before. All ranks make the pipeline with the same arguments, and then call the
    same methods in the same order, from one thread. docs/pipeline.md says more.

    Args:
      stages: a list with a module for each stage, or with functions that make them, of which a rank
        calls those of its own stages only; or a module, with `split`. Stage s is on place s % p of
        a pipeline over p ranks. A tuple that a stage returns is the next one's arguments. Values
        between stages are tensors, or tensors and plain values in tuples, lists and dicts. Only
        tensors that require a gradient get one.
      loss_fn: called as loss_fn(output, target) with those of a micro-batch, on the rank of the
        last stage; gives a tensor with one element.
      schedule: "gpipe", "1f1b", "eager-1f1b" (for slow links), "interleaved" (several stages a
        rank) or "zero-bubble"; see docs/pipeline.md.
      microbatches: how many parts a batch is cut into, along the first dimension of its tensors.
        Their sizes differ by one row at most.
      split: the submodules at which the stages after the first begin, by their paths, such as
        "layers.2"; or "balanced": the ranks measure forward and backward of each child, or of each
        in its lists, and cut so that the slowest stage is as fast as can be. A Sequential can be
        cut between its children, which may be given by number; all other modules and cuts need
        that torch.export can trace the module.
      sample: the input of a micro-batch, to trace and to measure with; a tuple has the module's
        arguments.
      stages_per_rank: for "balanced".
      mesh: (data, pipeline), the numbers of replicas and of ranks in the pipeline of each, whose
        ranks are neighbours; or a DeviceMesh with dimensions of these names. None: one pipeline
        over all ranks. Replicas begin with the values of the first; see `distributed`. Several of
        several ranks each need hvd.init(process_sets="dynamic"), or sets of the ranks with the same
        stages given to init.
      codec: "fp16", "bf16" or "int8" (by rows) for activations of float32 and float64, and their
        gradients; or a pair, for the two.
      tied: groups of parameters that are one weight, as pairs of a stage and a name in it. None:
        those that are the same object in several modules of `stages`.
      loss_reduction: "mean" if loss_fn averages over rows, "sum" if it adds them up.
      device: of this rank's stages. None: where their parameters are.

    Raises ValueError or TypeError on all ranks if one has wrong arguments or they differ.
    """

    def __init__(
        self,
        stages: Any,
        *,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        microbatches: int,
        schedule: str = "1f1b",
        split: Sequence[str | int] | str | None = None,
        sample: Any = None,
        stages_per_rank: int = 1,
        mesh: Any = None,
        codec: Any = None,
        tied: Sequence[Sequence[Entry]] | None = None,
        loss_reduction: str = "mean",
        device: torch.device | str | None = None,
    ) -> None:
        self._plan = agree_on_plan(
            Arguments(
                stages,
                loss_fn,
                schedule,
                microbatches,
                split,
                sample,
                stages_per_rank,
                mesh,
                codec,
                tied,
                loss_reduction,
                device,
            )
        )
        plan = self._plan
        self._loss_fn = loss_fn
        self._is_mean = loss_reduction == "mean"
        self._name = f"pipeline.{next_object('pipeline', WORLD)}.step"
        self._number = 0
        where = None if device is None else torch.device(device)
        if where is not None:
            for module in plan.modules.values():
                module.to(where)
        self._stages = {i: Stage(i, module, where) for i, module in plan.modules.items()}
        self._tied = TiedWeights(plan.tied, plan.routes, plan.place, plan.modules)
        self._traffic = Traffic(plan, self._tied)
        #: the ranks with the same stages, one in each replica; None if there is one replica
        self.data_set: hvd.ProcessSet | None = self._make_data_set()
        self._start_figures()
        self._begin_alike()

    def _make_data_set(self) -> hvd.ProcessSet | None:
        replicas, ranks = self._plan.mesh.shape
        if replicas == 1:
            return None
        if ranks == 1:
            return hvd.global_process_set
        sets = [_set_of(column) for column in self._plan.mesh.columns()]
        return sets[self._plan.place]

    def _begin_alike(self) -> None:
        """Gives tied weights, and the stages of all replicas, the same values."""
        exchange = Exchange(self._tied.routes(0))
        self._tied.make_equal(exchange, 0)
        if self.data_set is not None:
            root = self._plan.mesh.rows[0][self._plan.place]
            hvd.broadcast_parameters(self.state_dict(), root, self.data_set)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Gives the parameters of this rank's stages, each once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Gives the parameters of this rank's stages with their names in the whole model.

        These are the names in the module that was split; for a list of stages, the number of the
        stage, a dot, and the name in it.
        """
        seen = set()
        for index, module in self._plan.modules.items():
            for name, parameter in module.named_parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield self._plan.full_name(index, name), parameter

    @property
    def modules(self) -> dict[int, torch.nn.Module]:
        """Returns the modules of this rank's stages, by stage."""
        return dict(self._plan.modules)

    def train(self, mode: bool = True) -> None:
        """Sets the training mode of this rank's stages."""
        for module in self._plan.modules.values():
            module.train(mode)

    def distributed(
        self, optimizer: torch.optim.Optimizer, *, backward_passes_per_step: int = 1, **options: Any
    ) -> Any:
        """Returns the optimizer of `parameters()` with gradients reduced over the replicas.

        They are averaged, or with loss_reduction="sum" added up, so that they are those of one
        process with the batches of all replicas. It is an hvd.DistributedOptimizer on `data_set`.
        Its gradients go when the last micro-batch's backward has made them, with less priority than
        activations. With one replica it is the optimizer itself.

        Args:
          backward_passes_per_step: how many calls of `step` add their gradients up before one of
            optimizer.step.
          options: more of hvd.DistributedOptimizer's, such as `compression` or `op`.

        Raises ValueError or TypeError if backward_passes_per_step is not a number from 1.
        """
        steps = whole_number("backward_passes_per_step", backward_passes_per_step)
        if steps < 1:
            raise ValueError(f"backward_passes_per_step is {steps}; it must be 1 or more")
        if self.data_set is None:
            return optimizer
        options.setdefault("op", hvd.Average if self._is_mean else hvd.Sum)
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.named_parameters(),
            backward_passes_per_step=steps * self._plan.microbatches,
            process_set=self.data_set,
            **options,
        )

    def step(self, x: Any, target: Any, *, outputs: bool = False) -> Any:
        """Computes the loss of a batch, and adds its gradients to those of the parameters.

        Args:
          x: the input of the batch, used on the ranks that have the first stage. It gets no
            gradient.
          target: what loss_fn takes, used on the ranks that have the last stage.
          outputs: return what the last stage gave, too.

        Returns the loss, a float64 tensor, on every rank: of the whole batch, so the average over
        replicas if loss_fn averages, otherwise their sum. With outputs: also the output of this
        replica's batch on the rank with the last stage, and None elsewhere.

        Raises StageError on all ranks if a stage fails, ValueError on all if one has called another
        method, ValueError or TypeError on a rank whose batch is wrong, and AbortedError on all
        others if a rank is lost. Gradients are then not complete.
        """
        step = Step(
            *self._next("step"),
            self._stages,
            self._figures,
            self._loss_fn,
            self._is_mean,
        )
        begin = time.monotonic()
        for figures in self._figures.values():
            figures.spans.clear()
        losses, found = self._outcome(step, lambda: step.run_with(x, target, outputs))
        self._seconds += time.monotonic() - begin
        self._steps += 1
        loss = torch.tensor(losses, dtype=torch.float64)
        loss = loss.mean() if self._is_mean else loss.sum()
        return (loss, found) if outputs else loss

    def predict(self, x: Any) -> Any:
        """Returns the output for a batch on the rank with the last stage, and None elsewhere.

        Nothing is differentiated. Errors are those of step. The modules keep their mode; see train.
        """
        figures = {index: Figures() for index in self._stages}  # those of steps stay as they are
        prediction = Prediction(*self._next("predict"), self._stages, figures)
        with torch.no_grad():
            return self._outcome(prediction, lambda: prediction.run(x))[1]

    def _next(self, method: str) -> tuple[Traffic, int, Call]:
        """Begins a call, and returns its messages and its number."""
        self._number += 1
        own = [one for one in self._plan.modules.values() if isinstance(one, TracedStage)]
        evaluates = bool(own) and not any(one.training for one in own)
        return self._traffic, self._number, Call(method, evaluates)

    def _meet(self, method: str) -> None:
        """Begins a call in which ranks do not compute. Raises ValueError on all ranks unless all
        are in the same."""
        meeting = Meeting(*self._next(method))
        self._outcome(meeting, meeting.meet)

    def _outcome(self, step: Meeting, work: Callable[[], Any]) -> tuple[list[float], Any]:
        """Does this rank's part of a step, and returns the losses of all replicas and what came of
        it; or raises, on all ranks."""
        failure: BaseException | None = None
        outputs = None
        try:
            try:
                outputs = work()
            except AbortedError:
                raise
            except BaseException as error:  # the others wait for this rank also if it exits
                failure = error
            outcome = Outcome(self._plan.replica, self._plan.mesh.shape[0], step, failure)
            return step_outcome(self._name, outcome), outputs
        except AbortedError as error:
            raise lost(error, self._plan.own_stages) from error

    @property
    def spans(self) -> list[Span]:
        """Returns the actions of the last step on this rank, with their times, in order."""
        spans = [span for figures in self._figures.values() for span in figures.spans]
        return sorted(spans, key=lambda span: span[1])

    def report(self) -> Report:
        """Returns the figures of the steps since the last report. All ranks must call it."""
        self._meet("report")
        plan = self._plan
        steps = max(self._steps, 1)
        mine = [
            StageFigures(
                plan.replica,
                index,
                hvd.rank(),
                figures.computed / steps,
                figures.waited_for_input / steps,
                figures.waited_for_output / steps,
            )
            for index, figures in self._figures.items()
        ]
        everyone = hvd.allgather_object((mine, self._seconds / steps))
        report = Report(
            plan.schedule.name,
            plan.microbatches,
            self._steps,
            sum(seconds for _, seconds in everyone) / len(everyone),
            sorted(
                (row for rows, _ in everyone for row in rows),
                key=lambda row: (row.replica, row.stage),
            ),
            plan.schedule.bubble(plan.stages, plan.mesh.shape[1], plan.microbatches),
        )
        self._start_figures()
        return report

    def _start_figures(self) -> None:
        self._figures = {index: Figures() for index in self._stages}
        self._seconds = 0.0
        self._steps = 0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns parameters and buffers of this rank's stages, by their names in the whole model.

        See named_parameters.
        """
        state: dict[str, torch.Tensor] = {}
        for index in self._plan.modules:
            state |= checkpoint.stage_state(self._plan, index)
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Loads them into this rank's stages. Other names, such as those of other stages, are left
        alone. Raises ValueError if one is missing or has another shape."""
        checkpoint.load(self._plan, state)

    def save(
        self, folder: str | os.PathLike[str], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Writes a checkpoint: a file for each stage, and one that says how the model was split.

        All ranks call it, with a folder that they share. The first replica writes. A save that
        does not end is noticed by `load`.

        Args:
          optimizer: of `parameters()`, or of some of them; its state and the options of its groups,
            such as the learning rate, are saved by the parameters' names.

        Raises ValueError on all ranks if one cannot write, or if only some give an optimizer.
        """
        self._meet("save")
        path = Path(folder)
        self._require_same_optimizers(optimizer)
        number = hvd.broadcast_object(secrets.token_hex(8), 0)

        def write() -> dict[int, list[str]]:
            if self._plan.replica:
                return {}
            return checkpoint.write_stages(self._plan, path, number, optimizer)

        parts = together(write, "write its stages")
        names = {stage: own for part in parts for stage, own in part.items()}

        def write_summary() -> None:
            if hvd.rank() == self._plan.mesh.rows[0][0]:
                checkpoint.write_summary(self._plan, path, number, names, optimizer is not None)

        together(write_summary, "write pipeline.json")

    def load(
        self, folder: str | os.PathLike[str], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Loads a checkpoint, also one of another split of the same module.

        All ranks call it.

        Args:
          optimizer: gets the state that was saved for its parameters, and the options of their
            groups, which must be divided as they were.

        Raises ValueError on all ranks, before anything is changed, if one cannot read what it
        needs, or the checkpoint has what no stage has.
        """
        self._meet("load")
        path = Path(folder)
        self._require_same_optimizers(optimizer)
        found: list[checkpoint.Found] = []

        def read() -> tuple[list[str], list[str]]:
            found.append(checkpoint.read(self._plan, path, optimizer))
            return found[0].wanted, found[0].others

        everyone = together(read, "read its stages")
        wanted = [name for names, _ in everyone for name in names]
        checkpoint.require_all(path, wanted, everyone[0][1])
        self.load_state_dict(found[0].state)
        if optimizer is not None:
            optimizer.load_state_dict(found[0].optimizer)

    def _require_same_optimizers(self, optimizer: torch.optim.Optimizer | None) -> None:
        given = "None" if optimizer is None else "given"
        require_same([{"optimizer": one} for one in hvd.allgather_object(given)])


def _set_of(ranks: list[int]) -> hvd.ProcessSet:
    """Returns the set of these ranks; registers it if there is none. All ranks must call it."""
    for number, own in process_sets().items():  # the same on all ranks
        if own == ranks:
            found = hvd.ProcessSet(ranks)
            found.process_set_id = number
            return found
    return hvd.add_process_set(ranks)
