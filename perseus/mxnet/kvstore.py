"""A KVStore for MXNet like that of Ali-Perseus: there are no servers, the workers reduce.

    kv = perseus.mxnet.create("dist_sync_perseus")
    module.fit(..., kvstore=kv)
    mx.gluon.Trainer(..., kvstore=kv)

Arrays that are pushed are summed over the workers, and each worker pulls the sum. With an
optimizer, as in Module and Trainer, each worker updates its own weights by the sum, so they stay
the same on all. Module divides the sum by the number of workers. Trainer divides it by the batch
size that it is given, which must be that of all workers together.

To reduce by name, call init(name, array, param_only=True) once, then push and pull.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import perseus_core
from perseus.common import reduce_ops
from perseus.mxnet import engine
from perseus.mxnet.engine import NDArray, checked, copy_to, empty_like
from perseus.mxnet.horovod import mpi_ops
from perseus_core import OperationKind, refusals
from perseus_core.constants import WORLD

__all__ = ["KVStore", "PerseusOp", "create"]

_TYPE = "dist_sync_perseus"
_SPELLINGS = (_TYPE, "dist-sync-perseus")

Key = Any  # str or int


class PerseusOp(IntEnum):
    """How the workers' arrays are reduced."""

    Sum = reduce_ops.Sum
    Max = reduce_ops.Max
    Min = reduce_ops.Min
    Product = reduce_ops.Product


def create(name: str) -> KVStore:
    """Returns the store of this job; joins the job if necessary. ValueError for another name."""
    if name not in _SPELLINGS:
        raise ValueError(f"name is {name!r}; it must be {_TYPE!r}")
    return KVStore()


class KVStore(mx.kvstore.KVStoreBase):
    """Arrays by key, the same on all workers.

    Keys are str or int. Methods also accept a list of keys with a list of values. A value is an
    array, or a list with one for each device. All workers must make the same calls for a key, in
    the same order. Only code that reads a result waits for it.

    Methods raise KeyError for a key that is not initialized, ValueError for one that is initialized
    twice.
    """

    def __init__(self) -> None:
        mpi_ops.init()
        # The arrays to pull: the last sum, or the weight if there is an optimizer.
        self._values: dict[Key, NDArray] = {}
        # The results of pushes.
        self._results: dict[Key, NDArray] = {}
        # Keys that are reduced by name, which no optimizer updates.
        self._param_only: set[Key] = set()
        self._updater: Callable[[Any, NDArray, NDArray], None] | None = None

    @property
    def type(self) -> str:
        """The name of this kind of store."""
        return _TYPE

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return mpi_ops.rank()

    @property
    def local_rank(self) -> int:
        """The rank among those of this host, which is the number of the GPU to use."""
        return mpi_ops.local_rank()

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return mpi_ops.size()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Returns True for "optimizer"; raises ValueError for an unknown capability."""
        if capability.lower() != mx.kvstore.KVStoreBase.OPTIMIZER:
            raise ValueError(f"capability is {capability!r}; it must be 'optimizer'")
        return True

    def init(self, key: Key, value: Any, param_only: bool = False) -> None:
        """Initializes a key with worker 0's array for all workers to pull. `value` is not changed.

        Args:
          param_only: use the array for its shape and type only. Nothing is sent, and no optimizer
            is applied to what is pushed.
        """
        for one, arrays in _pairs(key, value, OperationKind.BROADCAST):
            with _refusing(OperationKind.BROADCAST, one):
                self._require_new(one)
                stored = checked(arrays[0], "value").copy()
            if param_only:
                self._param_only.add(one)
            else:
                self._broadcast(one, [stored], 0)
            self._values[one] = stored

    def broadcast(self, key: Key, value: Any, out: Any, priority: int = 0) -> None:
        """Initializes a key with worker 0's array, and writes it to `out`.

        An optimizer updates the first array of `out`.
        """
        outs = dict(_pairs(key, out, OperationKind.BROADCAST))
        for one, arrays in _pairs(key, value, OperationKind.BROADCAST):
            with _refusing(OperationKind.BROADCAST, one):
                self._require_new(one)
                targets = outs[one]
                if targets[0] is not checked(arrays[0], "value"):
                    arrays[0].copyto(targets[0])
            self._broadcast(one, targets, priority)
            self._values[one] = targets[0]

    def push(self, key: Key, value: Any, op: int = PerseusOp.Sum, priority: int = 0) -> None:
        """Reduces arrays over the workers, and over the devices of each.

        Without an optimizer, pull then gives the result. With an optimizer, which requires sums, it
        gives the updated weight. `value` is not changed.
        """
        for one, arrays in _pairs(key, value, OperationKind.ALLREDUCE):
            with _refusing(OperationKind.ALLREDUCE, one):
                op = self._checked(one, op)
                local = self._local(one, arrays, op)
            reduced = self._reduced(one, local, op, priority)
            if (updater := self._updater_of(one)) is not None:
                updater(one, reduced, self._values[one])
            else:
                self._values[one] = reduced

    def pull(
        self, key: Key, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Writes the array of the key to `out`. Sends nothing.

        The other arguments are not needed; MXNet passes them.
        """
        if out is None:
            raise ValueError(f"out is None; it takes the arrays to write {key!r} to")
        for one, targets in _pairs(key, out):
            copy_to(self._stored(one), targets)

    def pushpull(self, key: Key, value: Any, out: Any = None, priority: int = 0) -> None:
        """Does a push with Sum and a pull in one, into `out`, or into `value` if that is None.

        Without an optimizer, the sum is not stored: a later pull gives what it gave before.
        """
        outs = dict(_pairs(key, value if out is None else out, OperationKind.ALLREDUCE))
        for one, arrays in _pairs(key, value, OperationKind.ALLREDUCE):
            with _refusing(OperationKind.ALLREDUCE, one):
                local = self._local(one, arrays, PerseusOp.Sum)
            options: dict[str, Any] = {
                "name": _name(one),
                "priority": priority,
                "op": PerseusOp.Sum,
            }
            if (updater := self._updater_of(one)) is not None:
                weight = self._values[one]
                updater(one, self._reduced(one, local, PerseusOp.Sum, priority), weight)
                copy_to(weight, outs[one])
            elif out is None:
                copy_to(mpi_ops.allreduce_(local, **options), outs[one])
            else:
                copy_to(local, outs[one][:1])
                copy_to(mpi_ops.allreduce_(outs[one][0], **options), outs[one])

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Makes each worker update its weights by this optimizer with each later push.

        Keys with param_only are not affected.
        """
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"optimizer is {type(optimizer).__name__}; it takes an MXNet Optimizer")
        self._updater = mx.optimizer.get_updater(optimizer)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the states of the optimizer to a file, and the optimizer itself if asked to."""
        Path(fname).write_bytes(self._with_optimizer().get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Reads a file that save_optimizer_states has written."""
        self._with_optimizer().set_states(Path(fname).read_bytes())

    def row_sparse_pull(self, *args: Any, **kwargs: Any) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("sparse weights are not supported: the workers keep dense ones")

    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """Raises NotImplementedError; set PERSEUS_ALLREDUCE_DTYPE instead."""
        raise NotImplementedError(
            "MXNet's 2-bit compression is not supported; PERSEUS_ALLREDUCE_DTYPE=0 sends gradients "
            "as float16"
        )

    def barrier(self) -> None:
        """Waits until all workers have called it."""
        perseus_core.barrier()

    def _with_optimizer(self) -> Any:
        assert self._updater is not None, "the store has no optimizer"
        return self._updater

    def _stored(self, key: Key) -> NDArray:
        try:
            return self._values[key]
        except KeyError:
            raise KeyError(f"{key!r} has not been initialized: call init first") from None

    def _require_new(self, key: Key) -> None:
        if key in self._values:
            raise ValueError(
                f"key {key!r} is initialized already; each Trainer and each Module needs a store "
                "of its own"
            )

    def _updater_of(self, key: Key) -> Callable[[Any, NDArray, NDArray], None] | None:
        """Returns what updates the key's weight; None if it is reduced by name only."""
        return None if key in self._param_only else self._updater

    def _updates(self, key: Key) -> bool:
        return self._updater_of(key) is not None

    def _checked(self, key: Key, op: int) -> int:
        if self._updates(key) and op != PerseusOp.Sum:
            raise ValueError(f"op is {op!r}; with an optimizer it takes PerseusOp.Sum only")
        return PerseusOp(op)

    def _local(self, key: Key, arrays: Sequence[NDArray], op: int) -> NDArray:
        """Returns this worker's input: its array, or the reduced arrays of its devices."""
        stored, first = self._stored(key), arrays[0]
        for array in arrays:
            checked(array, "value")
            if (array.shape, array.dtype) != (stored.shape, stored.dtype):
                raise ValueError(
                    f"key {key!r} was initialized with {_described(stored)}, but the value is "
                    f"{_described(array)}"
                )
        if len(arrays) == 1:
            return first
        here = [array.as_in_context(first.context) for array in arrays]
        return functools.reduce(_COMBINED_BY[PerseusOp(op)], here)

    def _reduced(self, key: Key, local: NDArray, op: int, priority: int) -> NDArray:
        """Returns the result of the workers' arrays, in memory that is kept for the key.

        Getting the pages of a new array from the system takes longer than filling them.
        """
        reduced = self._results.get(key)
        # If an optimizer was set after the last push, its sum is a weight now.
        is_weight = self._updates(key) and reduced is self._values[key]
        if reduced is None or is_weight or reduced.context != local.context:
            reduced = self._results[key] = empty_like(local)
        return mpi_ops.allreduce_to(reduced, local, _name(key), priority, op)

    def _broadcast(self, key: Key, targets: Sequence[NDArray], priority: int) -> None:
        mpi_ops.broadcast_(targets[0], 0, name=_name(key), priority=priority)
        copy_to(targets[0], targets)


_COMBINED_BY: dict[PerseusOp, Callable[[NDArray, NDArray], NDArray]] = {
    PerseusOp.Sum: operator.add,
    PerseusOp.Product: operator.mul,
    PerseusOp.Max: lambda a, b: (mx.np if isinstance(a, mx.np.ndarray) else mx.nd).maximum(a, b),
    PerseusOp.Min: lambda a, b: (mx.np if isinstance(a, mx.np.ndarray) else mx.nd).minimum(a, b),
}


def _pairs(
    key: Key, value: Any, kind: OperationKind | None = None
) -> list[tuple[Key, list[NDArray]]]:
    """Returns each key with its arrays, one for each device.

    If the arguments are wrong, the operations of this kind for the keys fail on all ranks.
    """
    keys = list(key) if isinstance(key, (list, tuple)) else [key]
    names = [_name(one) for one in keys if isinstance(one, (str, int))]
    if kind is None:
        return _paired(key, keys, value)
    with engine.refusing_all(kind, kind.name.lower(), names, WORLD):
        return _paired(key, keys, value)


def _paired(key: Key, keys: list[Key], value: Any) -> list[tuple[Key, list[NDArray]]]:
    for one in keys:
        if not isinstance(one, (str, int)):
            raise TypeError(f"key is {one!r}; it takes a str or an int")
    values = value if isinstance(key, (list, tuple)) else [value]
    if not isinstance(values, (list, tuple)) or len(values) != len(keys):
        raise ValueError(f"there are {len(keys)} keys, and not as many arrays")
    pairs = []
    for one, arrays in zip(keys, values, strict=True):
        of_devices = list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
        if not of_devices:
            raise ValueError(f"key {one!r} has no array")
        pairs.append((one, of_devices))
    return pairs


def _name(key: Key) -> str:
    return f"kvstore.{key}"


def _refusing(kind: OperationKind, key: Key) -> refusals.refusing:
    """Makes an error of this worker fail the operation of the key on all workers."""
    return engine.refusing(kind, kind.name.lower(), _name(key), WORLD)


def _described(array: NDArray) -> str:
    return f"{np.dtype(array.dtype)}{list(array.shape)}"


# MXNet then finds it by name, as in fit(kvstore="dist_sync_perseus").
for _spelling in _SPELLINGS:
    mx.kvstore.KVStoreBase.kv_registry[_spelling] = KVStore
