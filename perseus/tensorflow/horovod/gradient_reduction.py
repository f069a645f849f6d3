"""What tapes and optimizers do with gradients: reduce them over the ranks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import tensorflow as tf

from perseus.common.callers import callers_level
from perseus.common.groups import checked_groups
from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Adasum, Average, checked_op
from perseus.common.util import split_list
from perseus.tensorflow.horovod.calls import normalized, reducing
from perseus.tensorflow.horovod.compression import Compressor
from perseus.tensorflow.horovod.mpi_ops import process_set_included_op, size_op
from perseus.tensorflow.horovod.reductions import gathered_slices
from perseus.tensorflow.horovod.util import is_variable, references
from perseus.tensorflow.plugin import ops
from perseus_core import WORLD
from perseus_core.arguments import real_number

__all__ = ["GradientReduction", "given_groups"]


class _How(NamedTuple):
    """How gradients are reduced; hashable."""

    name: str
    device_dense: str
    device_sparse: str
    compression: type[Compressor]
    op: int
    prescale: float
    postscale: float
    process_set: ProcessSet


class GradientReduction:
    """Reduces lists of gradients. Dense ones move side by side, those of the first variables first.

    In eager mode they are reduced by a function, since eager operations run one after the other.

    Args:
      name: the scope of the operations, and with it a part of their names.
      sparse_as_dense: turns IndexedSlices into tensors first.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / it after.
      groups: gradients that are reduced as one: how many groups, or lists of variables.
      process_set: the ranks that take part; on others gradients stay as they are.
      scale_local_gradients: divides the gradients of local variables by the number of ranks, as
        those of others are.

    Raises ValueError for arguments that contradict each other.
    """

    def __init__(
        self,
        name: str,
        device_dense: str,
        device_sparse: str,
        compression: type[Compressor],
        sparse_as_dense: bool,
        op: int,
        gradient_predivide_factor: float,
        groups: int | Sequence[Iterable[Any]] | None,
        process_set: ProcessSet,
        scale_local_gradients: bool = True,
    ) -> None:
        op = checked_op(op)
        factor = real_number("gradient_predivide_factor", gradient_predivide_factor)
        if factor == 0.0 or not math.isfinite(factor):
            raise ValueError(f"gradient_predivide_factor is {factor}; gradients are divided by it")
        if factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if op == Adasum and set_id(process_set) != WORLD:
            raise NotImplementedError("Adasum takes the ranks of the world, and no process set")
        scales = (1.0 / factor, factor) if op == Average else (1.0, 1.0)
        self._how = _How(name, device_dense, device_sparse, compression, op, *scales, process_set)
        self._sparse_as_dense = sparse_as_dense
        listed = checked_groups(
            groups, is_variable, lambda each: references([each])[0], "variables"
        )
        self._groups = (
            listed
            if listed is None or isinstance(listed, int)
            else tuple(tuple(references(group)) for group in listed)
        )
        self._scale_local_gradients = scale_local_gradients
        self._local: set[Any] = set()

    @property
    def process_set(self) -> ProcessSet:
        return self._how.process_set

    def register_local(self, variable: Any) -> None:
        """Leaves the gradients of a variable to this rank."""
        self._local.update(references([variable]))

    def is_local(self, variable: Any) -> bool:
        return bool(self._local) and references([variable])[0] in self._local

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any], use_generic_names: bool = False
    ) -> list[Any]:
        """The reduced gradients, in their order; None where there is none.

        Args:
          gradients: tensors, IndexedSlices and None, one for each of `variables`.
          use_generic_names: names them by their places only, and not by the variables.
        """
        results = list(gradients)
        refs = references(variables)
        ours = []
        for i, gradient in enumerate(results):
            if gradient is None:
                continue
            if self._sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
                results[i] = tf.convert_to_tensor(gradient)
            if refs[i] not in self._local:
                ours.append(i)
            elif self._scale_local_gradients:
                results[i] = self._scaled(results[i])
        if not ours or not _takes_part(self._how.process_set):
            return results
        names = tuple(
            f"grad_{i}" if use_generic_names else f"grad_{i}_{_short_name(variables[i])}"
            for i in ours
        )
        groups = tuple(tuple(group) for group in self._grouped([refs[i] for i in ours]))
        reduced = _reduce_gradients(self._how, names, groups, [results[i] for i in ours])
        for i, gradient in zip(ours, reduced, strict=True):
            results[i] = gradient
        return results

    def _scaled(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = self._scaled(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(size_op(set_id(self._how.process_set)), gradient.dtype)

    def _grouped(self, refs: list[Any]) -> list[Sequence[int]]:
        """Positions in `refs` that are reduced as one; most often each by itself."""
        if isinstance(self._groups, int):
            parts = split_list(range(len(refs)), min(self._groups, len(refs)))
            return [part for part in parts if part]
        if self._groups is None:
            return [[i] for i in range(len(refs))]
        place = {ref: i for i, ref in enumerate(refs)}
        groups = [[place.pop(ref) for ref in group if ref in place] for group in self._groups]
        return sorted([*filter(None, groups), *([i] for i in place.values())], key=min)


def given_groups(num_groups: int, groups: Any) -> Any:
    """What `groups` and its deprecated form say."""
    if num_groups == 0:
        return groups
    warnings.warn(
        "num_groups is deprecated; give groups instead",
        DeprecationWarning,
        stacklevel=callers_level(),
    )
    return num_groups if groups is None else groups


def in_graph(function: Callable[..., list[Any]], *key: Any) -> Callable[[Any], list[Any]]:
    """`function(*key, tensors)` of `tensors`, as a graph also where TensorFlow executes eagerly.

    Graphs are kept: the same key and the same types do not build another.
    """
    if not tf.executing_eagerly():
        return lambda tensors: function(*key, tensors)
    return _graph(function, *key)


@lru_cache(maxsize=256)
def _graph(function: Callable[..., list[Any]], *key: Any) -> Any:
    return tf.function(
        lambda tensors: function(*key, tensors), reduce_retracing=True, autograph=False
    )


def _takes_part(process_set: ProcessSet) -> bool:
    """Whether this rank reduces anything when it is called now. A graph may be run when there are
    other ranks, so that it holds the operations whatever there is now."""
    if not tf.executing_eagerly():
        return True
    return process_set.included() and process_set.size() > 1


def _reduce_gradients(
    how: _How, names: tuple[str, ...], groups: tuple[tuple[int, ...], ...], gradients: list[Any]
) -> list[Any]:
    return in_graph(_in_groups, how, names, groups)(gradients)


def _in_groups(
    how: _How, names: tuple[str, ...], groups: tuple[tuple[int, ...], ...], gradients: list[Any]
) -> list[Any]:
    number = set_id(how.process_set)
    if number == WORLD:
        return _all_groups(how, names, groups, gradients)
    return tf.cond(
        tf.equal(process_set_included_op(number), 1),
        lambda: _all_groups(how, names, groups, gradients),
        lambda: [_identity(each) for each in gradients],
    )


def _all_groups(
    how: _How, names: tuple[str, ...], groups: tuple[tuple[int, ...], ...], gradients: list[Any]
) -> list[Any]:
    results = list(gradients)
    with tf.name_scope(f"{how.name}_Allreduce"):
        for turn, group in enumerate(groups):
            dense: dict[Any, list[int]] = {}
            for i in group:
                if isinstance(gradients[i], tf.IndexedSlices):
                    results[i] = _gathered(how, names[i], gradients[i])
                else:
                    dense.setdefault(gradients[i].dtype, []).append(i)
            for members in dense.values():
                reduced = _reduced(
                    how, names[members[0]], len(groups) - turn, [gradients[i] for i in members]
                )
                for i, gradient in zip(members, reduced, strict=True):
                    results[i] = gradient
    return results


def _reduced(how: _How, name: str, priority: int, tensors: list[Any]) -> list[Any]:
    """Tensors of one type, reduced as one operation."""
    attributes = {
        **reducing(how.op, how.prescale, how.postscale),
        "process_set_id": set_id(how.process_set),
        "priority": priority,
    }
    with tf.device(how.device_dense):
        compressed = [how.compression.compress(tensor) for tensor in tensors]
        if len(tensors) == 1:
            name = f"HorovodAllreduce_{name}"
            reduced = [ops.horovod_allreduce(compressed[0][0], name=name, **attributes)]
        else:
            name = f"HorovodGroupedAllreduce_{name}"
            sent = [tensor for tensor, _ in compressed]
            reduced = ops.horovod_grouped_allreduce(sent, name=name, **attributes)
        return [
            how.compression.decompress(tensor, context)
            for tensor, (_, context) in zip(reduced, compressed, strict=True)
        ]


def _gathered(how: _How, name: str, slices: tf.IndexedSlices) -> tf.IndexedSlices:
    with tf.device(how.device_sparse):
        return gathered_slices(
            slices, how.op, how.prescale, how.postscale, f"HorovodAllgather_{name}", how.process_set
        )


def _identity(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape
        )
    return tf.identity(gradient)


def _short_name(variable: Any) -> str:
    """Of a variable, such as dense/kernel: as far as a node's name can hold it. Tensors that are
    there already have none."""
    return normalized(getattr(variable, "path", None) or getattr(variable, "name", None) or "")
