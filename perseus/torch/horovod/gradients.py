"""Reduces gradients while backward produces them.

A hook runs for each parameter as soon as its gradient is ready, so it must be cheap. Names are
registered once, and a contiguous gradient is submitted by its address and reduced in place. If
there are thousands of small parameters, several of them are reduced as one operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import torch

from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Adasum, Average
from perseus.torch.horovod.buckets import Bucket, make_buckets
from perseus.torch.horovod.compression import Compressor
from perseus.torch.horovod.hooks import Hooks
from perseus.torch.horovod.name_check import NameCheck
from perseus.torch.horovod.parameter_groups import Groups, groups_among
from perseus.torch.horovod.reductions import DenseReduction, GroupReduction
from perseus.torch.horovod.sparse import sparse_allreduce_async
from perseus.torch.horovod.trained_parameters import Parameters
from perseus_core import MismatchError, OperationKind, engine, settings
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
        params: Parameters,
        groups: Groups,
        order: Sequence[str] | None,
        compression: type[Compressor],
        passes: int,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        by_hooks: bool = True,
    ) -> None:
        self._params = params
        self._groups = groups
        self._compression = compression
        self._passes = passes
        self._op = op
        # The engine divides by the number of ranks, after the sum.
        self._prescale = 1.0 / predivide if op == Average else 1.0
        self._postscale = predivide if op == Average else 1.0
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        # Adasum needs whole gradients.
        self._makes_runs = op != Adasum and not _checks_for_nan()
        # The sparse dimensions of parameters whose last gradient was sparse. If this rank has no
        # gradient and others have one, it must take part with a sparse one as well.
        self._sparse_dims: dict[torch.Tensor, int] = {}
        self._names = params.described(params.params)
        self._hooks = Hooks(self) if by_hooks else None
        self.buckets: list[Bucket] = []
        self._register()
        self._add(params.params, order)

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
        """Starts the reductions that are not in flight yet, also of parameters that are new.

        If parameters are new, waits for the other ranks, and raises MismatchError if some of them
        have other ones.
        """
        must_wait = self._start_check()
        self.start_reductions()
        if must_wait:
            try:
                self._agree()
            except Exception:
                with contextlib.suppress(Exception):
                    self.finish(reversed(self.buckets))
                raise
            self.start_reductions()

    def agree(self) -> None:
        """Does what start() does before reductions; then call start_reductions() in this step."""
        if not self._start_check():
            return
        try:
            self._agree()
        except MismatchError as error:
            if not self._check.is_new():
                for bucket in self.buckets:  # the ranks without new parameters wait for them
                    refuse(bucket.id, MismatchError(str(error)))
            raise

    def start_reductions(self) -> None:
        """Starts the reductions that are not in flight yet."""
        for bucket in self.buckets:
            if bucket.finish is None:
                self.reduce(bucket)

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

        Raises the first error. If the ranks have never had parameters with the same names, nothing
        is waited for, because some operations would never end.
        """
        error: Exception | None = None
        try:
            self._check.finish()
        except Exception as failure:
            if isinstance(failure, MismatchError) and self._check.is_new():
                raise
            error = failure
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

    def _start_check(self) -> bool:
        """Starts to compare names, and returns whether to wait for that before reducing more."""
        if self._hooks is not None:
            self._hooks.check()
        if self._registered_for != set_id(self._process_set):
            self._register()
        if not (self._params.may_change or self._check.is_new()):
            return False
        has_changed = self._params.have_changed()
        names = self._params.described(self._params.wanted()) if has_changed else self._names
        self._check.start(names)
        return has_changed

    def _agree(self) -> None:
        """Waits until the ranks have agreed on the parameters, and adopts those that are new."""
        self._check.finish()
        new = self._params.adopt()
        self._names = self._params.described(self._params.params)
        self._drop_all_but(set(self._params.params))
        self._add(new)

    def _add(self, params: Sequence[torch.Tensor], order: Sequence[str] | None = None) -> None:
        names = self._params.names
        groups = groups_among(params, names, self._groups, order)
        positions = self._params.positions()
        added = make_buckets(params, names, positions, groups, self._makes_runs)
        for bucket in added:
            self._register_bucket(bucket)
            self._count_anew(bucket)
            if self._hooks is not None:
                self._hooks.add(bucket)
        self.buckets = sorted([*self.buckets, *added], key=lambda bucket: -bucket.priority)

    def _drop_all_but(self, kept: set[torch.Tensor]) -> None:
        """Drops the buckets without any of these parameters; all ranks do so at the same time."""
        dropped = [bucket for bucket in self.buckets if kept.isdisjoint(bucket.params)]
        self.buckets = [bucket for bucket in self.buckets if bucket not in dropped]
        for bucket in dropped:
            if self._hooks is not None:
                self._hooks.remove(bucket)
            for param in bucket.params:
                self._sparse_dims.pop(param, None)
        self.finish(dropped)

    def _register(self) -> None:
        self._registered_for = set_id(self._process_set)
        self._check = NameCheck(self._params.check, self._params.first_check, self._process_set)
        for bucket in self.buckets:
            self._register_bucket(bucket)

    def _register_bucket(self, bucket: Bucket) -> None:
        number = set_id(self._process_set)
        bucket.id = engine.register(number, OperationKind.ALLREDUCE, bucket.name)
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

    def reduce(self, bucket: Bucket) -> None:
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
