"""Keras on TensorFlow, a Backend of perseus._keras. Variables are TensorFlow's or Keras 3's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

import perseus.tensorflow.horovod as horovod
from perseus._keras.backend import Options
from perseus._keras.distributed import Distributed
from perseus.common.compression import Compressor
from perseus.common.elastic import Train
from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Min
from perseus.tensorflow.horovod import functions
from perseus.tensorflow.horovod.gradient_reduction import GradientReduction
from perseus.tensorflow.horovod.gradient_sums import GradientSums
from perseus.tensorflow.horovod.mpi_ops import process_set_included_op
from perseus.tensorflow.horovod.util import is_variable, tensorflow_variable
from perseus.tensorflow.keras2_optimizers import Keras2Distributed, LegacyDistributed
from perseus_core import WORLD

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


def keras2_class(optimizer: Any) -> type[Distributed] | None:
    if hasattr(optimizer, "aggregate_gradients"):
        return Keras2Distributed
    return LegacyDistributed if hasattr(optimizer, "_aggregate_gradients") else None


def make_reduction(options: Options) -> GradientReduction:
    return GradientReduction(
        options.name,
        options.device_dense,
        options.device_sparse,
        options.compression,
        options.sparse_as_dense,
        options.op,
        options.gradient_predivide_factor,
        options.groups,
        options.process_set,
        options.scale_local_gradients,
    )


def make_accumulation(options: Options) -> _Accumulation:
    return _Accumulation(options)


class _Accumulation:
    """Adds up gradients, in functions and eagerly."""

    def __init__(self, options: Options) -> None:
        self._name = options.name
        self.sums = GradientSums(options.passes, options.sparse_as_dense)

    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        at_end: Callable[[list[Any]], object],
        otherwise: Callable[[], object],
    ) -> None:
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        trained = [variables[i] for i in present]
        totals, is_last = self.sums.add([gradients[i] for i in present], trained)

        def last() -> tf.Tensor:
            sums: list[Any] = [None] * len(gradients)
            for i, total in zip(present, totals, strict=True):
                sums[i] = total
            at_end(sums)
            self.sums.clear(trained)
            return tf.constant(True)

        def before() -> tf.Tensor:
            otherwise()
            return tf.constant(False)

        # By default it is numbered among all conditions of the graph.
        tf.cond(is_last, last, before, name=f"{self._name}_last_pass")

    def reset(self) -> None:
        self.sums.reset()


def mark_non_finite(gradients: list[Any], which: Sequence[int], marked: int) -> list[Any]:
    results = list(gradients)
    results[marked] = _with_nan_unless(_are_finite(gradients, which), gradients[marked])
    return results


def finite_everywhere(
    gradients: list[Any], which: Sequence[int], name: str, process_set: ProcessSet
) -> list[Any]:
    if not which:
        return gradients
    finite = _all_ranks(_are_finite(gradients, which), name, process_set)
    results = list(gradients)
    results[which[0]] = _with_nan_unless(finite, gradients[which[0]])
    return results


def _are_finite(gradients: list[Any], which: Sequence[int]) -> tf.Tensor:
    values = [_values(gradients[i]) for i in which]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])


def _all_ranks(flag: tf.Tensor, name: str, process_set: ProcessSet) -> tf.Tensor:
    """Returns whether a flag is true on all ranks of the set; the flag itself on other ranks."""

    def agreed() -> tf.Tensor:
        number = tf.cast(flag, tf.int32)
        with tf.name_scope(f"{name}_Finite"):
            least = horovod.allreduce(
                number, op=Min, name=f"{name}_finite", process_set=process_set
            )
        return tf.cast(least, tf.bool)

    number = set_id(process_set)
    if number == WORLD:
        return agreed()
    return tf.cond(
        tf.equal(process_set_included_op(number), 1),
        agreed,
        lambda: tf.identity(flag),
        name=f"{name}_InSet",
    )


def _values(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _with_nan_unless(is_fine: tf.Tensor, gradient: Any) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient * tf.cast(tf.where(is_fine, 1.0, float("nan")), gradient.dtype)
    # Slices may have no rows, so a NaN needs one of its own.
    values, indices = gradient.values, gradient.indices
    rows = tf.where(is_fine, 0, 1)
    added = tf.fill(tf.concat([[rows], tf.shape(values)[1:]], 0), float("nan"))
    return tf.IndexedSlices(
        tf.concat([values, tf.cast(added, values.dtype)], 0),
        tf.concat([indices, tf.zeros([rows], indices.dtype)], 0),
        gradient.dense_shape,
    )


def current_graph() -> object:
    if tf.executing_eagerly():
        return None
    return weakref.ref(tf.compat.v1.get_default_graph())


def refuse_xla(name: str) -> None:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and GraphOrParentsInXlaContext(graph):
        raise RuntimeError(
            f"XLA would compile the training step of {name}, but it cannot reduce gradients over "
            "the ranks: pass jit_compile=False to model.compile (Keras 3 turns it on by itself if "
            "there is a GPU; Perseus's callbacks turn it off)"
        )


def turn_off_xla(model: Any) -> bool:
    if not getattr(model, "jit_compile", False):
        return False
    by_default = getattr(model, "_resolve_auto_jit_compile", lambda: False)()
    model.jit_compile = False
    model.train_function = None
    return not by_default


def sees_attributes(model: Any) -> bool:
    return bool(model.run_eagerly)


def number(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    return float(_evaluated(tensorflow_variable(value)))


def _evaluated(result: Any) -> Any:
    """Returns a result; in a graph of TensorFlow 1 its value, as Horovod does.

    Keras, or the caller of hvd.allreduce, would not run what has been added to the graph.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        return result
    return _session().run(result)


def _session() -> tf.compat.v1.Session:
    """Returns the session of Keras 2, in which it has initialized its variables.

    Keras 3 has none; then it is that of a `with` statement.
    """
    backend = tf.compat.v1.keras.backend
    return getattr(backend, "get_session", tf.compat.v1.get_default_session)()


def values_of(variables: Sequence[Any]) -> list[npt.NDArray[Any]]:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return functions.values_of(variables)
    return functions.values_of(variables, _session())


def saved_values(variables: Sequence[Any], last: Sequence[Any]) -> list[Any]:
    if tf.compat.v1.executing_eagerly_outside_functions():
        return functions.saved_values(variables, last)
    return functions.saved_values(variables, last, _session())


def assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    if tf.compat.v1.executing_eagerly_outside_functions():
        functions.assign(variables, values)
    else:
        functions.assign(variables, values, _session())


def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    sent = [each for each in variables if _can_be_sent(tensorflow_variable(each).dtype)]
    # The variables' own names differ if a rank has made other layers as well.
    _evaluated(horovod.broadcast_(sent, root_rank, name="keras_variable"))


def _can_be_sent(dtype: tf.DType) -> bool:
    return dtype not in (tf.string, tf.variant, tf.resource)


def broadcast_global_variables(root_rank: int) -> Any:
    return _evaluated(functions.broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    compression: type[Compressor],
) -> Any:
    reduced = horovod.allreduce(
        tf.convert_to_tensor(value),
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )
    return _evaluated(reduced)


def allgather(value: Any, name: str | None) -> Any:
    return _evaluated(horovod.allgather(tf.convert_to_tensor(value), name=name))


def broadcast(value: Any, root_rank: int, name: str | None) -> Any:
    return _evaluated(horovod.broadcast(tf.convert_to_tensor(value), root_rank, name=name))


def reducescatter(value: Any, name: str | None, op: int) -> Any:
    return _evaluated(horovod.reducescatter(tf.convert_to_tensor(value), name=name, op=op))


def run_elastic(func: Train) -> Train:
    return horovod.elastic.run(func)
