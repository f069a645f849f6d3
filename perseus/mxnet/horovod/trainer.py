"""gluon's Trainer, which reduces gradients over the ranks before it updates."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from perseus.common.compression import Compressor
from perseus.common.gradient_arguments import checked_predivide
from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.common.reduce_ops import Average
from perseus.common.stacklevel import user_stacklevel
from perseus.mxnet.engine import NDArray
from perseus.mxnet.horovod.compression import Compression
from perseus.mxnet.horovod.optimizer import (
    DistributedOptimizer,
    checked_num_groups,
    reduce_named,
    reduces,
)

__all__ = ["DistributedTrainer"]


class DistributedTrainer(mx.gluon.Trainer):
    """Averages gradients over the ranks, each rank having one device.

    step(batch_size) takes the batch of this rank: the gradients of all are averaged.

    Args:
      params: of a dict, all in its order; a list is put in the order of names.
      optimizer, optimizer_params: as gluon's Trainer has them.
      compression: what gradients are sent as, such as Compression.fp16.
      gradient_predivide_factor: gradients are divided by it before they are summed, and by the
        number of ranks over it afterwards.
      prefix: what the names of gradients begin with; tells several trainers apart.
      num_groups: gradients are reduced in so many groups; 0: each by itself.
      process_set: a rank that is not in it takes its own gradients.

    AssertionError for a prefix that is no str, ValueError for parameters on several devices.
    """

    def __init__(
        self,
        params: Any,
        optimizer: str | mx.optimizer.Optimizer,
        optimizer_params: dict[str, Any] | None = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        assert prefix is None or isinstance(prefix, str), "prefix must be a str, or None"
        self._compression = compression
        self._predivide = checked_predivide(gradient_predivide_factor, Average)
        self._prefix = prefix or ""
        self._num_groups = checked_num_groups(num_groups)
        self._process_set = process_set
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer takes the optimizer that DistributedOptimizer was given: "
                "gradients are reduced once",
                stacklevel=user_stacklevel(),
            )
            optimizer = optimizer._optimizer
        super().__init__(_in_order(params), optimizer, optimizer_params, kvstore=None)

    def _allreduce_grads(self) -> None:
        if not reduces(self._process_set):
            return
        sent = []
        for number, param in enumerate(self._params):
            if param.grad_req != "null":
                gradient = _only_gradient(param)
                compressed, ctx = self._compression.compress(gradient)
                sent.append((f"{self._prefix}{number}", -number, compressed, gradient, ctx))
        reduce_named(
            [(name, priority, compressed) for name, priority, compressed, _, _ in sent],
            self._num_groups,
            self._predivide,
            self._process_set,
        )
        for _, _, compressed, gradient, ctx in sent:
            restored = self._compression.decompress(compressed, ctx)
            if restored is not gradient:
                gradient[:] = restored


def _in_order(params: Any) -> Any:
    """As a list, which gluon leaves in its order; it sorts a dict by its keys."""
    if isinstance(params, (dict, mx.gluon.ParameterDict)):
        return [params[key] for key in params]
    if isinstance(params, (list, tuple)):
        return sorted(params, key=lambda param: getattr(param, "name", ""))
    return params


def _only_gradient(param: mx.gluon.Parameter) -> NDArray:
    gradients = param.list_grad()
    if len(gradients) > 1:
        raise ValueError(
            f"parameter {param.name} is on {len(gradients)} devices; each process trains on one"
        )
    return gradients[0]
