"""Sends Python objects between the ranks, and makes parameters the same on all."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import mxnet as mx

from perseus.common import objects
from perseus.common.process import size
from perseus.common.process_sets import global_process_set
from perseus.mxnet import engine
from perseus.mxnet.engine import NDArray, copy_to
from perseus.mxnet.horovod.mpi_ops import broadcast_
from perseus_core import OperationKind

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Returns the root's object on every rank; on other ranks a copy made by cloudpickle."""
    return objects.broadcast_object(obj, root_rank, name, global_process_set)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns copies of the ranks' objects, made by cloudpickle, in the order of the ranks."""
    return objects.allgather_object(obj, name, global_process_set)


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Fills parameters with those of the root, a rank of the world.

    The initialization of a parameter is deferred if its shape is not known yet. Such a parameter
    gets the root's values when it has been initialized in the first forward pass.

    Args:
      params: the result of Block.collect_params(), or a dict of parameters or arrays by name, such
        as those of Module.get_params().
      prefix: a prefix of the names that ranks match the parameters by.

    Raises ValueError if `params` is neither, AssertionError if the prefix is not a str.
    """
    if not isinstance(params, Mapping) and not isinstance(params, mx.gluon.ParameterDict):
        raise ValueError(f"invalid params of type: {type(params)}")
    assert prefix is None or isinstance(prefix, str), "prefix must be a str, or None"
    if size() == 1:
        return
    named = {
        f"{prefix or ''}{key}": value
        for key, value in sorted(params.items(), key=lambda item: str(item[0]))
    }
    with engine.refusing_all(OperationKind.BROADCAST, "broadcast", named, 0):
        arrays = {name: _arrays_of(name, value) for name, value in named.items()}
    for name, of_devices in arrays.items():
        if of_devices is None:
            _broadcast_once_initialized(named[name], root_rank, name)
        else:
            _broadcast(of_devices, root_rank, name)
    for of_devices in arrays.values():
        for array in of_devices or ():
            array.wait_to_read()


def _arrays_of(name: str, value: Any) -> list[NDArray] | None:
    """Returns a parameter's arrays, one for each device; None if it is not initialized yet."""
    if isinstance(value, NDArray):
        return [value]
    if not isinstance(value, mx.gluon.Parameter):
        raise ValueError(f"invalid params: {name} is {type(value).__name__}")
    try:
        arrays: list[NDArray] = value.list_data()
    except mx.gluon.parameter.DeferredInitializationError:
        return None
    return arrays


def _broadcast(of_devices: list[NDArray], root_rank: int, name: str) -> None:
    broadcast_(of_devices[0], root_rank, name=name)
    copy_to(of_devices[0], of_devices)


def _broadcast_once_initialized(param: Any, root_rank: int, name: str) -> None:
    initialize = param._init_impl

    def initialize_and_broadcast(self: Any, *args: Any, **kwargs: Any) -> None:
        self._init_impl = initialize
        initialize(*args, **kwargs)
        _broadcast(self.list_data(), root_rank, name)

    param._init_impl = types.MethodType(initialize_and_broadcast, param)
