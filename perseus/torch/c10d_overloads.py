"""The short forms of a process group's methods, such as group.broadcast(tensor, root).

torch.distributed itself calls group.broadcast([tensor], options). The groups of PyTorch choose a
form by the types of the arguments. A method in Python hides all of these forms, so it has to know
them by itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Work,
)

from perseus.torch.horovod.eager import eager

__all__ = [
    "ALLGATHER",
    "ALLREDUCE",
    "ALLTOALL",
    "ALLTOALL_SINGLE",
    "BARRIER",
    "BROADCAST",
    "GATHER",
    "REDUCE",
    "REDUCE_SCATTER",
    "SCATTER",
    "also_as",
]

_Method: TypeAlias = Callable[..., Work | None]
_Time: TypeAlias = timedelta | None

# Only short forms take them.
_SHORT_ARGUMENTS = (timedelta, dist.ReduceOp, dist.ReduceOp.RedOpType)


@dataclass(frozen=True)
class _Forms:
    """How a method can be called."""

    long: Sequence[str]  #: the parameters of the method's own form, but for `opts`, the last
    options: type  #: that of `opts`
    short: Callable[..., tuple[Any, ...]]  #: takes the short form's arguments, gives the long's
    tensor_at: int | None = None  #: in the short form alone, this argument is a single tensor

    @functools.cached_property
    def only_short(self) -> frozenset[str]:
        return frozenset(inspect.signature(self.short).parameters) - frozenset(self.long)

    def is_short(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        at = self.tensor_at
        return (
            not self.only_short.isdisjoint(kwargs)
            or any(isinstance(argument, _SHORT_ARGUMENTS) for argument in args)
            or (at is not None and len(args) > at and isinstance(args[at], torch.Tensor))
        )

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the arguments of the method's own form."""
        if self.is_short(args, kwargs):
            return self.short(*args, **kwargs)
        names = [*self.long, "opts"]
        given = {"opts": self.options(), **dict(zip(names, args, strict=False)), **kwargs}
        if len(args) > len(names) or set(given) != set(names):
            raise TypeError(f"the arguments are {list(given)}; they must be {names}")
        return [given[name] for name in names]


def also_as(forms: _Forms) -> Callable[[_Method], _Method]:
    """Lets a method of a group be called in all forms."""

    options = forms.options

    def decorate(method: _Method) -> _Method:
        @eager
        @functools.wraps(method)
        def call(group: Any, *args: Any, **kwargs: Any) -> Work | None:
            if args and type(args[-1]) is options and not kwargs:  # as PyTorch calls it
                return method(group, *args)
            return method(group, *forms.arguments(args, kwargs))

        return call

    return decorate


def _options(kind: Callable[[], Any], timeout: _Time, **values: Any) -> Any:
    options = kind()
    for name, value in values.items():
        setattr(options, name, value)
    if timeout is not None:
        options.timeout = timeout
    return options


_SUM = dist.ReduceOp.SUM


def _allreduce(tensor: Any, op: Any = _SUM, timeout: _Time = None) -> tuple[Any, ...]:
    tensors = [tensor] if isinstance(tensor, torch.Tensor) else tensor
    return tensors, _options(AllreduceOptions, timeout, reduceOp=op)


def _reduce(tensor: Any, root: int, op: Any = _SUM, timeout: _Time = None) -> tuple[Any, ...]:
    return [tensor], _options(ReduceOptions, timeout, rootRank=root, reduceOp=op)


def _reduce_scatter(
    output: Any, input: Any, op: Any = _SUM, timeout: _Time = None
) -> tuple[Any, ...]:
    return [output], [input], _options(ReduceScatterOptions, timeout, reduceOp=op)


def _broadcast(tensor: Any, root: int, timeout: _Time = None) -> tuple[Any, ...]:
    return [tensor], _options(BroadcastOptions, timeout, rootRank=root)


def _allgather(output_tensors: Any, input_tensor: Any, timeout: _Time = None) -> tuple[Any, ...]:
    return [output_tensors], [input_tensor], _options(AllgatherOptions, timeout)


def _gather(
    output_tensors: Any, input_tensor: Any, root: int, timeout: _Time = None
) -> tuple[Any, ...]:
    outputs = [output_tensors] if output_tensors else []
    return outputs, [input_tensor], _options(GatherOptions, timeout, rootRank=root)


def _scatter(
    output_tensor: Any, input_tensors: Any, root: int, timeout: _Time = None
) -> tuple[Any, ...]:
    inputs = [input_tensors] if input_tensors else []
    return [output_tensor], inputs, _options(ScatterOptions, timeout, rootRank=root)


def _alltoall(output: Any, input: Any, timeout: _Time = None) -> tuple[Any, ...]:
    return output, input, _options(AllToAllOptions, timeout)


def _alltoall_single(
    output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, timeout: _Time = None
) -> tuple[Any, ...]:
    options = _options(AllToAllOptions, timeout)
    return output, input, output_split_sizes, input_split_sizes, options


def _barrier(timeout: _Time = None) -> tuple[Any, ...]:
    return (_options(BarrierOptions, timeout),)


_OUTPUTS = ("output_tensors", "input_tensors")
ALLREDUCE = _Forms(["tensors"], AllreduceOptions, _allreduce, tensor_at=0)
REDUCE = _Forms(["tensors"], ReduceOptions, _reduce, tensor_at=0)
REDUCE_SCATTER = _Forms(_OUTPUTS, ReduceScatterOptions, _reduce_scatter, tensor_at=0)
BROADCAST = _Forms(["tensors"], BroadcastOptions, _broadcast, tensor_at=0)
ALLGATHER = _Forms(_OUTPUTS, AllgatherOptions, _allgather, tensor_at=1)
GATHER = _Forms(_OUTPUTS, GatherOptions, _gather, tensor_at=1)
SCATTER = _Forms(_OUTPUTS, ScatterOptions, _scatter, tensor_at=0)
ALLTOALL = _Forms(_OUTPUTS, AllToAllOptions, _alltoall)
ALLTOALL_SINGLE = _Forms(
    ["output_tensor", "input_tensor", "output_split_sizes", "input_split_sizes"],
    AllToAllOptions,
    _alltoall_single,
)
BARRIER = _Forms([], BarrierOptions, _barrier)
