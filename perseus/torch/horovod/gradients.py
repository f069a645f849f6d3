"""Reduces gradients while backward produces them.

A hook runs for each parameter as soon as its gradient is ready, so it must be cheap. Names are
registered once, and a contiguous gradient is submitted by its address and reduced in place. If
there are thousands of small parameters, several of them are reduced as one operation.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Adasum, Average
from perseus.common.stacklevel import user_stacklevel
from perseus.torch.horovod import handles
from perseus.torch.horovod.compression import Compressor, NoneCompressor
from perseus.torch.horovod.name_check import NameCheck
from perseus.torch.horovod.sparse import sparse_allreduce_async
from perseus.torch.horovod.tensors import (
    copy,
    described,
    in_memory,
)
from perseus.torch.row_major import is_row_major, row_major
from perseus_core import HorovodInternalError, OperationKind, engine, settings
from perseus_core.refusals import refuse

#: If there are MANY gradients of at most SMALL bytes, submitting, agreeing on and finishing them
#: takes longer than moving them. Then RUN of them are reduced as one operation.
MANY = 500
SMALL = 64 << 10
RUN = 32

NAN_CHECK = "PERSEUS_ALLREDUCE_NANCHECK"

#: Maps the id of an operation to the function that waits for it and applies the deferred update
#: that needs it; see forward_overlap.
deferred: dict[int, Callable[[], None]] = {}


class Bucket:
    """Parameters whose gradients are reduced as one operation; usually just one.

    Args:
      is_run: whether the bucket was formed because of RUN, not by the user's choice.
    """

    def __init__(
        self,
        params: list[torch.Tensor],
        members: list[str],
        name: str,
        priority: int,
        is_run: bool = False,
    ) -> None:
        self.params = params
        #: the parameters' names
        self.members = members
        self.name = name
        self.priority = priority
        self.is_run = is_run
        self.id = 0
        #: backward passes still to come, for each parameter
        self.passes_left: list[int] = []
        #: waits for the reduction and stores the result in the gradients; None if none is in flight
        self.finish: Callable[[], None] | None = None
        #: reduces dense gradients; set once the name is registered
        self.reduction: DenseReduction | GroupReduction
        #: the handle of the reduction in flight, if it has just one
        self.handle: int | None = None
        #: the gradients that are being reduced
        self.grads: list[torch.Tensor] = []
        #: whether the update of the parameters is deferred
        self.is_deferred = False

    def is_done(self) -> bool:
        """Returns whether finish would return at once; False if that is not known."""
        return self.handle is not None and handles.poll(self.handle)


class Gradients:
    """Reduces the gradients of one optimizer.

    Only the thread that runs backward and step may use it. The tensors in the parameters' `grad`
    are reduced in place. With hooks, each reduction starts as soon as backward has produced the
    gradient; the others start in start() and synchronize().
    """

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        names: Mapping[torch.Tensor, str],
        groups: Sequence[list[torch.Tensor]],
        compression: type[Compressor],
        passes: int,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        by_hooks: bool = True,
    ) -> None:
        self._compression = compression
        self._passes = passes
        self._op = op
        # The engine divides by the number of ranks, after the sum.
        self._prescale = 1.0 / predivide if op == Average else 1.0
        self._postscale = predivide if op == Average else 1.0
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        # The sparse dimensions of parameters whose last gradient was sparse. If this rank has no
        # gradient and others have one, it must take part with a sparse one as well.
        self._sparse_dims: dict[torch.Tensor, int] = {}
        self._registered_for: int | None = None
        self._names = [names[param] for param in params]
        self._name_check: NameCheck | None = None
        self.buckets = self._make_buckets(params, names, groups)
        self._register()
        self.restart()
        for bucket in self.buckets if by_hooks else ():
            for index, param in enumerate(bucket.params):
                hook = param.register_post_accumulate_grad_hook(self._make_hook(bucket, index))
                weakref.finalize(self, hook.remove)

    def set_passes(self, passes: int) -> None:
        """Sets how many backward passes are added up, and restarts the count."""
        self._passes = passes
        for bucket in self.buckets:
            self._count_anew(bucket)

    def params(self) -> list[torch.Tensor]:
        """Returns all parameters, in the order of their buckets."""
        return [param for bucket in self.buckets for param in bucket.params]

    def under_way(self) -> bool:
        """Returns whether gradients are being reduced, or only wait for others of their run."""
        return any(
            bucket.finish is not None or (bucket.is_run and 0 in bucket.passes_left)
            for bucket in self.buckets
        )

    def restart(self) -> None:
        """Waits for reductions in flight, and restarts the count of backward passes."""
        self.finish(self.buckets)

    def start(self) -> None:
        """Starts the reductions that are not in flight yet."""
        for bucket in self.buckets:
            if bucket.finish is None:
                self._reduce(bucket)

    def take(self) -> dict[torch.Tensor, torch.Tensor]:
        """Returns the gradients that are being reduced, by parameter.

        If the gradient of a parameter has been replaced by another tensor, the one that is being
        reduced is put back. Parameters whose gradient was set to None are left out.
        """
        taken = {}
        for bucket in self.buckets:
            for param, grad in zip(bucket.params, bucket.grads, strict=False):
                if param.grad is not None:
                    taken[param] = grad
                    if param.grad is not grad:
                        param.grad = grad
            bucket.grads = []
        return taken

    def finish(self, buckets: Iterable[Bucket]) -> None:
        """Waits for all of these buckets, even if one fails, and restarts their counts of passes.

        Raises the first error. If the ranks' parameters have different names, that is an error, and
        nothing is waited for, because some operations would never end.
        """
        if self._name_check is not None:
            self._name_check.check()
        error: Exception | None = None
        for bucket in buckets:
            finish, bucket.finish = bucket.finish, None
            bucket.handle = None
            bucket.grads = []
            try:
                if finish is not None:
                    finish()
            except Exception as failure:
                error = error or failure
            self._count_anew(bucket)
        if error is not None:
            raise error

    def synchronize(self) -> None:
        """Starts the reductions that are left, and waits for all, even if one fails."""
        try:
            self.start()
        finally:
            self.take()
            # Waits in the order in which backward has started them, so that the first ones are
            # probably done.
            self.finish(reversed(self.buckets))

    def _make_buckets(
        self,
        params: Sequence[torch.Tensor],
        names: Mapping[torch.Tensor, str],
        groups: Sequence[list[torch.Tensor]],
    ) -> list[Bucket]:
        # Parameters are registered in the order in which the forward pass needs them.
        order = {param: i for i, param in enumerate(params)}
        # Adasum needs whole gradients, and groups that the user chose must stay as they are.
        no_runs = groups or self._op == Adasum or _checks_for_nan()
        runs = [] if no_runs else _runs(params, names)
        grouped = {param for group in (*groups, *runs) for param in group}
        members = [*groups, *runs, *([param] for param in params if param not in grouped)]
        buckets = []
        for group in members:
            first = min(order[param] for param in group)
            prefix = "grouped_allreduce" if group[0] in grouped else "allreduce"
            name = f"{prefix}.{names[group[0]]}"
            named = [names[param] for param in group]
            is_run = bool(runs) and len(group) > 1
            buckets.append(Bucket(list(group), named, name, -first, is_run))
        return sorted(buckets, key=lambda bucket: -bucket.priority)

    def _register(self) -> None:
        self._registered_for = set_id(self._process_set)
        has_runs = any(bucket.is_run for bucket in self.buckets)
        self._name_check = NameCheck(self._names, self._process_set) if has_runs else None
        for bucket in self.buckets:
            bucket.id = engine.register(self._registered_for, OperationKind.ALLREDUCE, bucket.name)
            kind = DenseReduction if len(bucket.params) == 1 else GroupReduction
            bucket.reduction = kind(
                bucket.id,
                bucket.members,
                bucket.priority,
                self._op,
                self._prescale,
                self._postscale,
                self._compression,
            )

    def _count_anew(self, bucket: Bucket) -> None:
        bucket.passes_left[:] = [self._passes] * len(bucket.params)

    def _make_hook(self, bucket: Bucket, index: int) -> Callable[[torch.Tensor], None]:
        # The parameters hold the hook, so the hook must not keep an unused optimizer alive.
        owner = weakref.ref(self)

        def hook(param: torch.Tensor) -> None:
            left = bucket.passes_left
            if bucket.is_deferred:
                raise RuntimeError(
                    f"backward reached {bucket.name}, whose last update is deferred: its parameter "
                    "was used in a way that Python does not see. Call optimizer.apply_updates() "
                    "before the forward pass, or do not use overlap_forward."
                )
            if bucket.finish is not None or left[index] <= 0:
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before "
                    "call to step(). Increase backward_passes_per_step to accumulate gradients "
                    "locally."
                )
            if param.grad.requires_grad:
                raise AssertionError("a gradient that is reduced must not itself require one")
            left[index] -= 1
            if not any(left):
                gradients = owner()
                if gradients is not None:
                    gradients._reduce(bucket)

        return hook

    def _reduce(self, bucket: Bucket) -> None:
        """Starts the reduction of a bucket.

        This function raises no error; synchronize raises it instead. Backward must go on and submit
        the other gradients, which the other ranks wait for.
        """
        try:
            self._start(bucket)
        except Exception as error:
            refuse(bucket.id, error)
            bucket.finish = _raising(error)

    def _start(self, bucket: Bucket) -> None:
        if self._registered_for != self._process_set.process_set_id:
            self._register()
        if self._name_check is not None:
            self._name_check.start()
        if bucket.id in deferred:  # by another optimizer, whose parameters have the same names
            deferred[bucket.id]()
        grads = bucket.grads = [self._grad(param) for param in bucket.params]
        if grads[0].is_sparse or (len(grads) > 1 and any(grad.is_sparse for grad in grads)):
            self._start_sparse(bucket, grads)
        else:
            self._start_dense(bucket, grads)

    def _start_dense(self, bucket: Bucket, grads: list[torch.Tensor]) -> None:
        bucket.reduction.start(grads)
        bucket.finish = bucket.reduction
        bucket.handle = bucket.reduction.handle

    def _grad(self, param: torch.Tensor) -> torch.Tensor:
        """Returns the parameter's gradient; sets it to zeros if there is none."""
        grad = param.grad
        if grad is None:
            grad = param.grad = self._zeros(param)
        return grad

    def _zeros(self, param: torch.Tensor) -> torch.Tensor:
        """Returns zeros as a parameter's gradient, in the layout that its last gradient had."""
        sparse_dims = self._sparse_dims.get(param)
        if sparse_dims is None:
            return torch.zeros_like(param)
        indices = param.new_empty(sparse_dims, 0, dtype=torch.int64)
        values = param.new_empty(0, *param.shape[sparse_dims:])
        return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)

    def _start_sparse(self, bucket: Bucket, grads: list[torch.Tensor]) -> None:
        for param, grad in zip(bucket.params, grads, strict=True):
            if grad.is_sparse:
                self._sparse_dims[param] = grad.sparse_dim()
        if len(grads) == 1 and not self._sparse_as_dense:
            name = bucket.name.removeprefix("allreduce.")
            result = sparse_allreduce_async(grads[0], name, self._op, self._process_set)
            bucket.finish = lambda: _replace_sparse(grads[0], result())
            return
        if not self._sparse_as_dense and not bucket.is_run:
            raise ValueError(
                f"{bucket.name} is a group with sparse gradients; remove them from it, or set "
                "sparse_as_dense=True"
            )
        dense = [grad.to_dense() if grad.is_sparse else grad for grad in grads]
        self._start_dense(bucket, dense)
        reduction = bucket.reduction

        def finish() -> None:
            reduction()
            for grad, reduced in zip(grads, dense, strict=True):
                if grad.is_sparse:
                    _replace_sparse(grad, reduced.to_sparse())

        bucket.finish = finish


def _checks_for_nan() -> bool:
    """Returns whether the engine checks for NaN.

    Its messages name the operation, which is too vague if that reduces several parameters.
    """
    return any(row.name == NAN_CHECK and row.value != "off" for row in settings())


def _runs(
    params: Sequence[torch.Tensor], names: Mapping[torch.Tensor, str]
) -> list[list[torch.Tensor]]:
    """Returns groups of small parameters to reduce as one operation, if there are many of them.

    Ranks may have their parameters in different orders, so the order of the names decides which
    ones form a group.
    """
    small = [param for param in params if param.numel() * param.element_size() <= SMALL]
    if len(small) < MANY:
        return []
    small.sort(key=lambda param: _in_order(names[param]))
    runs: list[list[torch.Tensor]] = []
    for param in small:
        if not runs or len(runs[-1]) == RUN or _is_elsewhere(names, runs[-1], param):
            runs.append([])
        runs[-1].append(param)
    return runs


def _is_elsewhere(
    names: Mapping[torch.Tensor, str], run: Sequence[torch.Tensor], param: torch.Tensor
) -> bool:
    """Returns whether a run must or should end before a parameter.

    It should end at another part of the model, because gradients of the last layers come first.
    """
    if run[0].device != param.device:  # the tensors of an operation must be on one device
        return True
    return len(run) >= RUN // 4 and _part(names[run[-1]]) != _part(names[param])


def _part(name: str) -> str:
    """Returns the part of the model that a parameter is in: head for head.1.weight."""
    return name.partition(".")[0]


def _in_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Returns a sort key that puts layer.9 before layer.10, different for every name."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)], name


class Reduction:
    """Reduces gradients in place, under the name that is registered as `id`.

    start() starts the reduction of a step. Calling the object waits for the results and stores them
    in the gradients. The object is used for all steps: new objects for each of thousands of
    gradients, which live until all are reduced, would make Python's garbage collector run often.
    """

    __slots__ = ("_compression", "_id", "_members", "_options", "handle")

    def __init__(
        self,
        id: int,
        members: Sequence[str],
        priority: int,
        op: int,
        prescale: float,
        postscale: float,
        compression: type[Compressor],
    ) -> None:
        self._id = id
        self._members = members
        self._compression = compression
        self._options = (op, prescale, postscale, priority)


class DenseReduction(Reduction):
    """Reduces one gradient."""

    __slots__ = ("_address", "_buffer", "_ctx", "_grad", "_version")

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._grad: torch.Tensor | None = None
        self._buffer: torch.Tensor | None = None
        self._ctx: Any = None

    def start(self, grads: list[torch.Tensor]) -> None:
        """Starts to reduce a gradient; the previous reduction must be finished."""
        (grad,) = grads
        if self._compression is NoneCompressor and is_row_major(grad):
            buffer, self._buffer = grad, None
        else:
            buffer, self._ctx = _compressed(grad, self._compression)
            self._buffer = buffer
        operand, place = in_memory(buffer, buffer)
        # Keeps the memory alive, whatever happens to the gradient.
        memory = buffer.untyped_storage()
        self.handle = engine.submit_allreduce(self._id, memory, *operand, *self._options, *place)
        handles.track(self.handle, memory)
        self._address = operand[0]
        self._grad = grad
        self._version = grad._version

    def __call__(self) -> None:
        """Waits for the result and stores it in the gradient."""
        grad, buffer, self._grad, self._buffer = self._grad, self._buffer, None, None
        memory = handles.finish(self.handle)
        if buffer is not None:
            copy(grad, self._compression.decompress(buffer, self._ctx))
        else:
            _put_in_place(grad, self._address, memory, self._version, self._members[0])


class GroupReduction(Reduction):
    """Reduces several gradients as one operation."""

    __slots__ = ("_addresses", "_buffers", "_grads", "_versions")

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._grads: list[torch.Tensor] = []
        #: by position: the tensor that is reduced in place of a gradient, and the context to
        #: decompress it
        self._buffers: dict[int, tuple[torch.Tensor, Any]] = {}

    def start(self, grads: list[torch.Tensor]) -> None:
        """Starts to reduce gradients; the previous reduction must be finished."""
        compresses = self._compression is not NoneCompressor
        self._buffers = {
            i: _compressed(grad, self._compression)
            for i, grad in enumerate(grads)
            if compresses or not is_row_major(grad)
        }
        reduced = grads
        if self._buffers:
            reduced = [self._buffers.get(i, (grad,))[0] for i, grad in enumerate(grads)]
        tensors, place = described(reduced, reduced)
        op, prescale, postscale, priority = self._options
        # Keeps the memory alive, whatever happens to the gradients.
        memory = [tensor.untyped_storage() for tensor in reduced]
        self.handle = engine.submit(
            self._id,
            memory,
            tensors,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            priority=priority,
            place=place,
        )
        handles.track(self.handle, memory)
        self._addresses = [address for address, *_ in tensors]
        self._grads = grads
        self._versions = [grad._version for grad in grads]

    def __call__(self) -> None:
        """Waits for the results and stores them in the gradients."""
        grads, buffers, self._grads, self._buffers = self._grads, self._buffers, [], {}
        try:
            memory = handles.finish(self.handle)
        except HorovodInternalError as error:
            raise type(error)(self._naming(str(error))) from error
        for i, grad in enumerate(grads):
            if i in buffers:
                copy(grad, self._compression.decompress(*buffers[i]))
            else:
                _put_in_place(
                    grad, self._addresses[i], memory[i], self._versions[i], self._members[i]
                )

    def _naming(self, error: str) -> str:
        """Returns the engine's message with the names of parameters in place of their numbers."""
        return re.sub(
            r"tensor (\d+) of the group", lambda found: self._members[int(found[1])], error
        )


def _put_in_place(
    grad: torch.Tensor, address: int, memory: torch.UntypedStorage, version: int, name: str
) -> None:
    """Finishes a gradient that was reduced in place, and may have been moved or changed since."""
    if grad.data_ptr() != address:
        copy(grad, _tensor_at(address, memory, grad))
    elif grad._version != version and not grad._is_view():  # views share the counter of changes
        _warn_of_a_change(name)


def _tensor_at(address: int, memory: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Returns the tensor at an address in a storage, with the shape and type of another."""
    offset = (address - memory.data_ptr()) // like.element_size()
    return like.new_empty(0).set_(memory, offset, like.shape)


def _compressed(grad: torch.Tensor, compression: type[Compressor]) -> tuple[torch.Tensor, Any]:
    buffer, ctx = compression.compress(grad)
    return row_major(buffer), ctx


def _replace_sparse(grad: torch.Tensor, reduced: torch.Tensor) -> None:
    grad.zero_().add_(reduced)


def _warn_of_a_change(name: str) -> None:
    warnings.warn(
        f"a gradient was changed in place while it was being reduced ({name}), so ranks may differ "
        "now: call optimizer.synchronize() before that, and step() within skip_synchronize()",
        stacklevel=user_stacklevel(),
    )


def _raising(error: Exception) -> Callable[[], None]:
    def finish() -> None:
        raise error

    return finish
