"""Keras 3 on PyTorch, a Backend of perseus._keras. Variables are Keras's, gradients are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import perseus.torch.horovod as horovod
from perseus._keras.backend import Options
from perseus.common.compression import Compressor
from perseus.common.elastic import Train
from perseus.common.gradient_arguments import checked_groups
from perseus.common.local_variables import LocalVariables, Reduce
from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Min
from perseus.common.saved_arrays import saved_copies
from perseus.common.variable_names import own_name
from perseus.torch.horovod.compression import checked_compression
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.gradients import Gradients
from perseus.torch.horovod.parameter_groups import Groups
from perseus.torch.horovod.trained_parameters import Parameters

__all__ = [
    "allgather",
    "allreduce",
    "assign",
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
    "mark_non_finite",
    "number",
    "reducescatter",
    "refuse_xla",
    "run_elastic",
    "saved_values",
    "sees_attributes",
    "turn_off_xla",
    "values_of",
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
        self.local_variables = LocalVariables(_key)
        self._of_sets: dict[tuple[Any, ...], Gradients] = {}

    @eager
    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Reduce
    ) -> list[Any]:
        process_set = self._options.process_set
        scales = self._options.scale_local_gradients and bool(process_set.included())
        return self.local_variables.reduce_others(
            gradients,
            variables,
            reduce,
            (lambda gradient: gradient / process_set.size()) if scales else None,
        )

    @eager
    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None, use_generic_names: bool
    ) -> list[Any]:
        if variables is None:
            raise TypeError("on PyTorch, gradients are reduced with their variables; vars is None")
        process_set = self._options.process_set
        set_id(process_set)
        results = list(gradients)
        ours = [i for i, gradient in enumerate(results) if gradient is not None]
        if not ours or not process_set.included() or process_set.size() == 1:
            return results
        parameters = [_parameter(variables[i]) for i in ours]
        key = (use_generic_names, *ours, *map(id, parameters))
        if key not in self._of_sets:
            if len(self._of_sets) == _MOST_SETS:
                self._of_sets.clear()
            names = {
                parameter: f"{self._options.name}.{i}"
                + ("" if use_generic_names else f".{own_name(variables[i].path)}")
                for i, parameter in zip(ours, parameters, strict=True)
            }
            self._of_sets[key] = self._new_reduction(names)
        reduced = _reduced_as(self._of_sets[key], parameters, [results[i] for i in ours])
        for i, gradient in zip(ours, reduced, strict=True):
            results[i] = gradient
        return results

    def _new_reduction(self, names: dict[torch.Tensor, str]) -> Gradients:
        """Makes what reduces the gradients of these parameters, which ranks match by the names."""
        options = self._options
        groups: Groups = None
        if isinstance(self._groups, int):
            groups = self._groups
        elif self._groups is not None:
            groups = [[_parameter(each) for each in group] for group in self._groups]
        return Gradients(
            Parameters(list(names), names),
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


def _reduced_as(
    reduction: Gradients, parameters: list[torch.Tensor], gradients: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Reduces gradients that are not in the parameters themselves."""
    before = [parameter.grad for parameter in parameters]
    try:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        reduction.synchronize()
        return [parameter.grad for parameter in parameters if parameter.grad is not None]
    finally:
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad


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
def mark_non_finite(gradients: list[Any], which: Sequence[int], marked: int) -> list[Any]:
    if _are_finite(gradients, which):
        return gradients
    results = list(gradients)
    results[marked] = torch.full_like(gradients[marked], float("nan"))
    return results


def _are_finite(gradients: list[Any], which: Sequence[int]) -> bool:
    return all(bool(torch.isfinite(gradients[i]).all()) for i in which)


@eager
def finite_everywhere(
    gradients: list[Any], which: Sequence[int], name: str, process_set: ProcessSet
) -> list[Any]:
    if not which or not process_set.included() or process_set.size() == 1:
        return gradients
    flag = torch.tensor([_are_finite(gradients, which)], dtype=torch.uint8, device="cpu")
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


def number(value: Any) -> float:
    return float(value.numpy() if hasattr(value, "numpy") else value)


def is_variable(value: Any) -> bool:
    import keras

    return isinstance(value, keras.Variable)


def values_of(variables: Sequence[Any]) -> list[npt.NDArray[Any]]:
    return [_value_of(variable) for variable in variables]


def _value_of(variable: Any) -> npt.NDArray[Any]:
    try:
        value: npt.NDArray[Any] = _parameter(variable).detach().cpu().numpy()
    except TypeError:  # a type that NumPy lacks, such as bfloat16
        value = np.asarray(variable.numpy())
    return value


def saved_values(variables: Sequence[Any], last: Sequence[Any]) -> list[Any]:
    return [*saved_copies(values_of(variables), last)]


def assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.array(value))


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


def _key(variable: Any) -> int:
    return id(_parameter(variable))
