"""Reduces gradients while backward produces them.

A hook runs for each parameter as soon as its gradient is ready, so it must be cheap. Names are
registered once, and a contiguous gradient is submitted by its address and reduced in place. If
there are thousands of small parameters, several of them are reduced as one operation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Adasum, Average
from perseus.torch.horovod.buckets import Bucket, make_buckets
from perseus.torch.horovod.compression import Compressor
from perseus.torch.horovod.name_check import NameCheck
from perseus.torch.horovod.reductions import DenseReduction, GroupReduction
from perseus.torch.horovod.sparse import sparse_allreduce_async
from perseus_core import OperationKind, engine, settings
from perseus_core.refusals import refuse

NAN_CHECK = "PERSEUS_ALLREDUCE_NANCHECK"

#: Maps the id of an operation to the function that waits for it and applies the deferred update
#: that needs it; see forward_overlap.
deferred: dict[int, Callable[[], None]] = {}


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
        # Adasum needs whole gradients.
        makes_runs = op != Adasum and not _checks_for_nan()
        self.buckets = make_buckets(params, names, groups, makes_runs)
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


def _replace_sparse(grad: torch.Tensor, reduced: torch.Tensor) -> None:
    grad.zero_().add_(reduced)


def _raising(error: Exception) -> Callable[[], None]:
    def finish() -> None:
        raise error

    return finish
