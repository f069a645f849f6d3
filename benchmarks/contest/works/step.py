"""A training step's gradients, as backward produces them on an accelerator.

The accelerator is simulated: while a layer computes, this thread sleeps, so that the processor is
free, as it is beside a GPU. Its clock is separate from the processor's: a sleep that ends late
delays what is submitted then, but not the layers that follow.

Environment variables select how a contender takes part, because all contenders get the same
options: STEP_OVERLAP=1 lets each layer's forward wait for its own gradients only; STEP_PRIORITY=1
gives the first layers' gradients the highest priority; STEP_BUCKET_MB=25 sends gradients together,
as PyTorch's DistributedDataParallel does.
"""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from contest.models import Model, Tensor, forward_seconds, model
from contest.works.check import require

#: A shorter wait was not for a gradient: the calls themselves take this long.
MIN_BLOCKED_SECONDS = 200e-6
#: Sleeps end early by this and the rest is slept again, because the kernel may be late by about
#: this.
SLACK = 60e-6


def steps(
    contender: Any, *, iterations: int, name: str, slowdown: float = 1.0, warm_up: int = 1
) -> list[float]:
    """Returns microseconds from the end of one backward pass to the end of the next.

    `name` is the model's. The first step has nothing to wait for, so it counts as warm-up, of which
    there is at least one step.
    """
    trained = model(name)
    exchange = _exchange(contender, trained)
    accelerator = Accelerator(forward_seconds(trained, slowdown=slowdown))
    overlap = os.environ.get("STEP_OVERLAP") == "1"
    ends = _train(accelerator, exchange, max(1, warm_up) + iterations, overlap)
    return _microseconds(ends)[-iterations:]


def compute(contender: Any, *, iterations: int, name: str, slowdown: float = 1.0) -> list[float]:
    """The same without waiting for any gradient."""
    accelerator = Accelerator(forward_seconds(model(name), slowdown=slowdown))
    contender.barrier()
    ends = _train(accelerator, _Nothing(), 1 + iterations, True)
    return _microseconds(ends)


def gradients(contender: Any, *, iterations: int, name: str, warm_up: int = 1) -> list[float]:
    """Returns microseconds from submitting all gradients, last layer first, to having them all.

    A graph reduces them in its own order.
    """
    trained = model(name)
    if hasattr(contender, "summed"):
        in_graph = importlib.import_module("contest.works.graph")
        times: list[float] = in_graph.gradients(contender, trained, warm_up + iterations)
        return times[warm_up:]
    exchange = _exchange(contender, trained)
    times = []
    for _ in range(warm_up + iterations):
        contender.barrier()
        began = time.perf_counter()
        for layer in reversed(range(len(trained.layers))):
            exchange.submit(layer)
        for layer in range(len(trained.layers)):
            exchange.wait(layer)
        times.append((time.perf_counter() - began) * 1e6)
    return times[warm_up:]


class Accelerator:
    """Computes layers in order, each for its given time; backward takes twice as long as
    forward."""

    def __init__(self, forward: Sequence[float]) -> None:
        self.forward = forward
        #: The time at which it will have finished all its work.
        self.free = time.perf_counter()

    def compute(self, seconds: float) -> None:
        """Returns when that work is done, or a little later."""
        self.free += seconds
        while (left := self.free - time.perf_counter()) > 0:
            time.sleep(max(left - SLACK, 0))

    def wait_for(self, wait: Callable[[], None]) -> None:
        """Waits for what the next layer needs; the accelerator stands still until then."""
        began = time.perf_counter()
        wait()
        now = time.perf_counter()
        if now - began > MIN_BLOCKED_SECONDS:
            self.free = max(self.free, now)


def _train(accelerator: Accelerator, exchange: Any, steps: int, overlap: bool) -> list[float]:
    """Returns when each backward pass ended. Every step moves all gradients; the last are
    awaited."""
    layers = range(len(accelerator.forward))
    ends = []
    accelerator.free = time.perf_counter()
    for step in range(steps):
        for layer in layers:
            if step > 0 and (overlap or layer == 0):
                needed = [layer] if overlap else layers
                accelerator.wait_for(lambda needed=needed: _wait(exchange, needed))
            accelerator.compute(accelerator.forward[layer])
        for layer in reversed(layers):
            accelerator.compute(2 * accelerator.forward[layer])
            exchange.submit(layer)
        # If submitting takes longer than computing, the step takes as long as submitting.
        accelerator.free = max(accelerator.free, time.perf_counter())
        ends.append(accelerator.free)
    _wait(exchange, layers)
    return ends


def _microseconds(moments: Sequence[float]) -> list[float]:
    return [(end - begin) * 1e6 for begin, end in itertools.pairwise(moments)]


def _wait(exchange: Any, layers: Sequence[int]) -> None:
    for layer in layers:
        exchange.wait(layer)


class _Nothing:
    def submit(self, layer: int) -> None:
        pass

    def wait(self, layer: int) -> None:
        pass


def _exchange(contender: Any, trained: Model) -> Any:
    bucket = float(os.environ.get("STEP_BUCKET_MB", "0"))
    exchange = _Buckets(contender, trained, bucket) if bucket else _EachGradient(contender, trained)
    checked = _checked.setdefault(contender, set())
    if trained.name not in checked:
        _check(contender, exchange, len(trained.layers))
        checked.add(trained.name)
    for gradient in exchange.gradients():  # otherwise repeated sums would overflow
        contender.fill(gradient, 0)
    contender.barrier()
    return exchange


#: Models whose sums have been checked, by contender: on slow links a check takes as long as a step.
_checked: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def _check(contender: Any, exchange: Any, layers: int) -> None:
    """Reduces ones, once, and checks the sums."""
    for layer in reversed(range(layers)):
        exchange.submit(layer)
    _wait(exchange, range(layers))
    for gradient in exchange.gradients():
        require(gradient, len(gradient), contender.size)


def declare(contender: Any, named: Sequence[tuple[str, Any]]) -> None:
    """Tells a contender that needs it about all gradients, in forward order."""
    if hasattr(contender, "declare"):
        contender.declare(named)


class _EachGradient:
    """Every gradient is an operation of its own, with a name."""

    def __init__(self, contender: Any, trained: Model) -> None:
        self._contender = contender
        prioritised = os.environ.get("STEP_PRIORITY") == "1"
        self._layers: list[list[tuple[str, Any, int]]] = []
        rank = 0  # in order of the forward pass
        for layer in trained.layers:
            named = []
            for tensor in layer.tensors:
                name = f"{trained.name}.{tensor.name}"
                named.append((name, contender.tensor(tensor.elements), -rank * prioritised))
                rank += 1
            self._layers.append(named)
        self._pending: list[list[Any]] = [[] for _ in trained.layers]
        declare(contender, [(name, tensor) for named in self._layers for name, tensor, _ in named])

    def gradients(self) -> Iterator[Any]:
        for layer in self._layers:
            for _, gradient, _ in layer:
                yield gradient

    def submit(self, layer: int) -> None:
        self._pending[layer] = [
            self._contender.allreduce_async(gradient, name, priority)
            for name, gradient, priority in reversed(self._layers[layer])
        ]

    def wait(self, layer: int) -> None:
        for handle in self._pending[layer]:
            self._contender.wait(handle)
        self._pending[layer] = []


class _Buckets:
    """Copies gradients into buckets in backward order; a full bucket is reduced.

    The first bucket holds 1 MB, so that communication starts early, the others `megabytes`: the
    defaults of DistributedDataParallel (Li et al. 2020). Results are copied back.
    """

    def __init__(self, contender: Any, trained: Model, megabytes: float) -> None:
        self._contender = contender
        self._gradients: list[list[Any]] = [
            [contender.tensor(tensor.elements) for tensor in layer.tensors]
            for layer in trained.layers
        ]
        self._places: list[list[tuple[int, Any]]] = [[] for _ in trained.layers]
        self._buckets: list[Any] = []
        self._members: list[int] = []
        self._fill(trained, megabytes)
        self._missing = list(self._members)
        self._handles: list[Any] = [None] * len(self._buckets)

    def _fill(self, trained: Model, megabytes: float) -> None:
        backward = [
            (layer, tensor)
            for layer in reversed(range(len(trained.layers)))
            for tensor in reversed(trained.layers[layer].tensors)
        ]
        for members in in_buckets(backward, 1e6, megabytes * 1e6):
            bucket = self._contender.tensor(sum(tensor.elements for _, tensor in members))
            offset = 0
            for layer, tensor in members:
                view = bucket[offset : offset + tensor.elements]
                self._places[layer].append((len(self._buckets), view))
                offset += tensor.elements
            self._buckets.append(bucket)
            self._members.append(len(members))

    def gradients(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self._gradients)

    def submit(self, layer: int) -> None:
        for (bucket, view), gradient in zip(
            self._places[layer], reversed(self._gradients[layer]), strict=True
        ):
            view[:] = gradient
            self._missing[bucket] -= 1
            if self._missing[bucket] == 0:
                self._missing[bucket] = self._members[bucket]
                self._handles[bucket] = self._contender.allreduce_async(
                    self._buckets[bucket], f"bucket{bucket}", 0
                )

    def wait(self, layer: int) -> None:
        for (bucket, view), gradient in zip(
            self._places[layer], reversed(self._gradients[layer]), strict=True
        ):
            if self._handles[bucket] is not None:
                self._contender.wait(self._handles[bucket])
                self._handles[bucket] = None
            gradient[:] = view


def in_buckets(
    tensors: Sequence[tuple[int, Tensor]], first: float, others: float
) -> list[list[tuple[int, Tensor]]]:
    """Cuts tensors into runs; a run ends with the tensor that makes it reach this many bytes."""
    buckets: list[list[tuple[int, Tensor]]] = [[]]
    size = 0
    for layer, tensor in tensors:
        if size >= (first if len(buckets) == 1 else others):
            buckets.append([])
            size = 0
        buckets[-1].append((layer, tensor))
        size += 4 * tensor.elements
    return buckets
