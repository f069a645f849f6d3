"""An optimizer that reduces gradients before each update, for Module and for custom loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from perseus.common.gradient_arguments import checked_predivide
from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Average
from perseus.common.util import split_list
from perseus.mxnet.engine import NDArray
from perseus.mxnet.horovod.mpi_ops import allreduce_, grouped_allreduce_
from perseus_core.arguments import whole_number

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Averages gradients over the ranks, in place, and passes them to `optimizer`.

    All other attributes, such as rescale_grad, are those of the optimizer.

    Args:
      optimizer: an optimizer of MXNet.
      gradient_predivide_factor: gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      num_groups: how many groups gradients that are updated together are reduced in; 0 to reduce
        them one by one. MXNet updates several together if its optimizer has an aggregate_num.
      process_set: a rank that is not in it uses its own gradients.
    """

    _OWN = frozenset({"_optimizer", "_predivide", "_num_groups", "_process_set"})

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"optimizer is {type(optimizer).__name__}; it takes an MXNet Optimizer")
        self._optimizer = optimizer
        self._predivide = checked_predivide(gradient_predivide_factor, Average)
        self._num_groups = checked_num_groups(num_groups)
        self._process_set = process_set

    def __getattr__(self, item: str) -> Any:
        if item in self._OWN:  # while it is unpickled
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def create_state(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        if not reduces(self._process_set):
            return
        several = isinstance(index, (tuple, list))
        named = list(zip(index, grad, strict=True)) if several else [(index, grad)]
        reduce_named(
            [(str(each), -each if isinstance(each, int) else 0, one) for each, one in named],
            self._num_groups,
            self._predivide,
            self._process_set,
        )


def reduces(process_set: ProcessSet) -> bool:
    """Returns whether this rank has other ranks to reduce with.

    Raises ValueError if the set is not registered.
    """
    set_id(process_set)
    return bool(process_set.included()) and (process_set.size() or 0) > 1


def reduce_named(
    gradients: Sequence[tuple[str, int, NDArray]],
    num_groups: int,
    predivide: float,
    process_set: ProcessSet,
) -> None:
    """Averages gradients over the ranks, in place.

    Args:
      gradients: the name, the priority and the array of each.
      num_groups: into how many groups to split them, each of one type; 0 to reduce them one by one.
      predivide: they are divided by it before the sum, and multiplied by it after.
    """
    scales: dict[str, Any] = {
        "prescale_factor": 1.0 / predivide,
        "postscale_factor": predivide,
        "process_set": process_set,
        "op": Average,
    }
    if num_groups == 0:
        for name, priority, gradient in gradients:
            allreduce_(gradient, name=name, priority=priority, **scales)
        return
    groups = split_list(gradients, min(num_groups, len(gradients)) or 1)
    for number, group in enumerate(groups):
        for of_one_type in _by_type(group):
            first, last = of_one_type[0][0], of_one_type[-1][0]
            arrays = [gradient for _, _, gradient in of_one_type]
            grouped_allreduce_(arrays, name=f"{first}:{last}", priority=-number, **scales)


def checked_num_groups(num_groups: int) -> int:
    groups = whole_number("num_groups", num_groups)
    if groups < 0:
        raise ValueError(f"num_groups is {groups}; it takes 0 or more")
    return groups


def _by_type(
    group: Sequence[tuple[str, int, NDArray]],
) -> list[list[tuple[str, int, NDArray]]]:
    types: dict[str, list[tuple[str, int, NDArray]]] = {}
    for member in group:
        types.setdefault(str(member[2].dtype), []).append(member)
    return list(types.values())
