"""Keras 3 on PyTorch, a Backend of perseus._keras. Variables are Keras's, gradients are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

import perseus.torch.horovod as horovod
from perseus._keras.backend import Options
from perseus.common.compression import Compressor
from perseus.common.elastic import Train
from perseus.common.gradient_arguments import checked_groups
from perseus.common.process_sets import ProcessSet
from perseus.common.reduce_ops import Min
from perseus.common.variable_names import own_name
from perseus.torch.horovod.compression import checked_compression
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.gradients import Gradients
from perseus.torch.horovod.parameter_groups import Groups
from perseus.torch.horovod.trained_parameters import Parameters

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "current_graph",
    "finite_everywhere",
    "horovod",
    "is_variable",
    "keras2_class",
    "make_accumulation",
    "make_reduction",
    "reducescatter",
    "refuse_xla",
    "run_elastic",
    "sees_attributes",
    "turn_off_xla",
]

#: How many sets of variables are kept for an optimizer; most optimizers have one.
_MOST_SETS = 8

# From types that ranks cannot send to types of the same size that they can.
_SENT_AS = {
    torch.complex32: torch.int32,
    torch.complex64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


def keras2_class(optimizer: Any) -> type | None:
    return None  # Keras 2 runs on TensorFlow


def make_reduction(options: Options) -> _Reduction:
    return _Reduction(options)


class _Reduction:
    """Reduces gradients in place, at the same time; those of the first variables go first."""

    def __init__(self, options: Options) -> None:
        checked_compression(options.compression)
        self._options = options
        self._groups = checked_groups(options.groups, is_variable, id, "variables")
        self._local: set[int] = set()
        self._of_sets: dict[tuple[int, ...], Gradients] = {}

    def register_local_var(self, variable: Any) -> None:
        self._local.add(id(_parameter(variable)))

    def is_local(self, variable: Any) -> bool:
        return id(_parameter(variable)) in self._local

    @eager
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        process_set = self._options.process_set
        results = list(gradients)
        if not process_set.included() or process_set.size() == 1:
            return results
        ours = []
        for i, gradient in enumerate(results):
            if gradient is None:
                continue
            if not self.is_local(variables[i]):
                ours.append(i)
            elif self._options.scale_local_gradients:
                results[i] = gradient / process_set.size()
        if ours:
            reduced = self._reduced([results[i] for i in ours], [variables[i] for i in ours])
            for i, gradient in zip(ours, reduced, strict=True):
                results[i] = gradient
        return results

    def _reduced(self, gradients: list[torch.Tensor], variables: list[Any]) -> list[torch.Tensor]:
        parameters = [_parameter(variable) for variable in variables]
        reduction = self._reduction_of(parameters, variables)
        before = [parameter.grad for parameter in parameters]
        try:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            reduction.synchronize()
            return [parameter.grad for parameter in parameters if parameter.grad is not None]
        finally:
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = grad

    def _reduction_of(self, parameters: list[torch.Tensor], variables: list[Any]) -> Gradients:
        key = tuple(map(id, parameters))
        if key not in self._of_sets:
            if len(self._of_sets) == _MOST_SETS:
                self._of_sets.clear()
            self._of_sets[key] = self._new_reduction(parameters, variables)
        return self._of_sets[key]

    def _new_reduction(self, parameters: list[torch.Tensor], variables: list[Any]) -> Gradients:
        options = self._options
        names = {
            parameter: f"{options.name}.{i}.{own_name(variable.path)}"
            for i, (parameter, variable) in enumerate(zip(parameters, variables, strict=True))
        }
        groups: Groups = None
        if isinstance(self._groups, int):
            groups = self._groups
        elif self._groups is not None:
            groups = [[_parameter(each) for each in group] for group in self._groups]
        return Gradients(
            Parameters(parameters, names),
            groups,
            list(names.values()),
            options.compression,
            1,
            options.op,
            options.gradient_predivide_factor,
            options.sparse_as_dense,
            options.process_set,
            by_hooks=False,
        )


def make_accumulation(options: Options) -> _Accumulation:
    return _Accumulation(options.passes)


class _Accumulation:
    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._count = 0
        self._sums: dict[int, torch.Tensor] = {}

    @eager
    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        at_end: Callable[[list[Any]], object],
        otherwise: Callable[[], object],
    ) -> None:
        keys = [id(_parameter(variable)) for variable in variables]
        with torch.no_grad():
            for key, gradient in zip(keys, gradients, strict=True):
                if gradient is None:
                    continue
                if key in self._sums:
                    self._sums[key] += gradient
                else:
                    self._sums[key] = gradient.clone()
        self._count += 1
        if self._count < self._passes:
            otherwise()
            return
        sums = self._sums
        self.reset()
        at_end([sums.get(key) for key in keys])

    def reset(self) -> None:
        self._count = 0
        self._sums = {}


@eager
def finite_everywhere(
    gradients: list[Any], which: Sequence[int], name: str, process_set: ProcessSet
) -> list[Any]:
    if not which or not process_set.included() or process_set.size() == 1:
        return gradients
    finite = all(bool(torch.isfinite(gradients[i]).all()) for i in which)
    flag = torch.tensor([finite], dtype=torch.uint8, device="cpu")
    horovod.allreduce_(flag, name=f"{name}.finite", op=Min, process_set=process_set)
    if flag.item():
        return gradients
    results = list(gradients)
    results[which[0]] = torch.full_like(gradients[which[0]], float("nan"))
    return results


def current_graph() -> object:
    return None


def refuse_xla(name: str) -> None:
    pass


def turn_off_xla(model: Any) -> bool:
    """Returns False: torch.compile leaves out calls to the engine, so nothing is turned off."""
    return False


def sees_attributes(model: Any) -> bool:
    return not model.jit_compile


def is_variable(value: Any) -> bool:
    import keras

    return isinstance(value, keras.Variable)


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    tensors = [
        (f"keras_variable.{i}", _sendable(_parameter(variable).detach()))
        for i, variable in enumerate(variables)
    ]
    horovod.broadcast_parameters(tensors, root_rank)


def _sendable(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the same memory as a type that ranks can send."""
    return tensor.view(_SENT_AS[tensor.dtype]) if tensor.dtype in _SENT_AS else tensor


def broadcast_global_variables(root_rank: int) -> Any:
    raise RuntimeError(
        "hvd.broadcast_global_variables() is for graphs of TensorFlow, and Keras runs on PyTorch: "
        "pass the callback BroadcastGlobalVariablesCallback to fit"
    )


def allreduce(
    value: Any,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    compression: type[Compressor],
) -> torch.Tensor:
    return horovod.allreduce(
        _tensor(value),
        name=name,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(value: Any, name: str | None) -> torch.Tensor:
    return horovod.allgather(_tensor(value), name)


def broadcast(value: Any, root_rank: int, name: str | None) -> torch.Tensor:
    return horovod.broadcast(_tensor(value), root_rank, name)


def reducescatter(value: Any, name: str | None, op: int) -> torch.Tensor:
    return horovod.reducescatter(_tensor(value), name=name, op=op)


def run_elastic(func: Train) -> Train:
    return horovod.elastic.run(func)


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if is_variable(value):
        return _parameter(value).detach()
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.as_tensor(np.array(value))
    return torch.as_tensor(value)


def _parameter(variable: Any) -> torch.Tensor:
    """Returns the tensor of a variable of Keras, in the type that is stored."""
    return variable._value
