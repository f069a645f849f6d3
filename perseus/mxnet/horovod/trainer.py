"""A gluon Trainer that reduces gradients over the ranks before it updates."""

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
    """Averages gradients over the ranks. Each rank uses one device.

    step(batch_size) gets the batch size of this rank: the gradients of all ranks are averaged.

    Args:
      params: a dict, which stays in its order, or a list, which is sorted by names.
      optimizer, optimizer_params: as for gluon's Trainer.
      compression: how gradients are sent, such as Compression.fp16.
      gradient_predivide_factor: gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      prefix: a prefix of the names of gradients, different for each trainer.
      num_groups: how many groups gradients are reduced in; 0 to reduce them one by one.
      process_set: a rank that is not in it uses its own gradients.

    Raises AssertionError if the prefix is not a str, ValueError for parameters on several devices.
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
                "DistributedTrainer uses the optimizer in the DistributedOptimizer, so that "
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
    """Returns parameters as a list, which gluon does not reorder; it would sort a dict by keys."""
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
