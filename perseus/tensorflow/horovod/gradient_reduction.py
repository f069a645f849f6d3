"""Reduces the gradients of tapes and optimizers over the ranks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from perseus.common.gradient_arguments import checked_groups, checked_predivide
from perseus.common.local_variables import LocalVariables, Reduce
from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Adasum, Average, checked_op
from perseus.common.util import split_list
from perseus.tensorflow.horovod.compression import Compressor
from perseus.tensorflow.horovod.mpi_ops import process_set_included_op, size_op
from perseus.tensorflow.horovod.op_arguments import in_graph, reducing, short_name
from perseus.tensorflow.horovod.reductions import gathered_slices
from perseus.tensorflow.horovod.util import is_variable, reference, references
from perseus.tensorflow.plugin import is_in_loop, ops
from perseus_core import WORLD

__all__ = ["GradientReduction", "divided"]


#: Running an op in TensorFlow takes longer than reducing gradients of at most SMALL bytes. So one
#: op submits RUN of them, each as an operation of its own. The op starts when its last gradient is
#: ready, so RUN is small.
SMALL = 64 << 10
RUN = 16


class _Sent(NamedTuple):
    """Gradients of one type that are reduced as one operation."""

    members: list[int]
    name: str
    priority: int
    tensors: list[Any]
    #: contexts to decompress the results
    contexts: list[Any]

    def is_small(self) -> bool:
        """Returns whether it may be in a run."""
        elements = self.tensors[0].shape.num_elements()
        dtype = self.tensors[0].dtype
        return len(self.members) == 1 and elements is not None and elements * dtype.size <= SMALL


class _Plan(NamedTuple):
    """How a list of gradients is reduced, with their names and groups; hashable."""

    name: str
    device_dense: str
    device_sparse: str
    compression: type[Compressor]
    op: int
    prescale: float
    postscale: float
    names: tuple[str, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()

    def reduce(self, process_set: ProcessSet, gradients: list[Any]) -> list[Any]:
        """Reduces gradients on ranks in the set, and returns them unchanged on other ranks.

        The graph finds out when it runs whether a rank is in the set.
        """
        number = set_id(process_set)
        if number == WORLD:
            return self._reduce(process_set, gradients)
        reduced: list[Any] = tf.cond(
            tf.equal(process_set_included_op(number), 1),
            lambda: self._reduce(process_set, gradients),
            lambda: [_identity(each) for each in gradients],
            # By default it is numbered among all conditions of the graph.
            name=f"{self.name}_InSet",
        )
        return reduced

    def _reduce(self, process_set: ProcessSet, gradients: list[Any]) -> list[Any]:
        results = list(gradients)
        with tf.name_scope(f"{self.name}_Allreduce"):
            sent: list[_Sent] = []
            for turn, group in enumerate(self.groups):
                dense: dict[Any, list[int]] = {}
                for i in group:
                    if isinstance(gradients[i], tf.IndexedSlices):
                        results[i] = self._gathered(self.names[i], gradients[i], process_set)
                    else:
                        dense.setdefault(gradients[i].dtype, []).append(i)
                for members in dense.values():
                    tensors = [gradients[i] for i in members]
                    sent.append(self._compressed(members, len(self.groups) - turn, tensors))
            # Ops that are ready at the same time run in this order, which is that of backward.
            for run in reversed(_in_runs(sent)):
                with tf.device(self.device_dense):
                    for one, reduced in zip(run, self._reduced(run, process_set), strict=True):
                        for i, tensor, context in zip(
                            one.members, reduced, one.contexts, strict=True
                        ):
                            results[i] = self.compression.decompress(tensor, context)
        return results

    def _compressed(self, members: list[int], priority: int, gradients: list[Any]) -> _Sent:
        kind = "HorovodAllreduce" if len(members) == 1 else "HorovodGroupedAllreduce"
        with tf.device(self.device_dense):
            compressed = [self.compression.compress(gradient) for gradient in gradients]
        tensors, contexts = map(list, zip(*compressed, strict=True))
        return _Sent(members, f"{kind}_{self.names[members[0]]}", priority, tensors, contexts)

    def _reduced(self, run: list[_Sent], process_set: ProcessSet) -> list[list[Any]]:
        """Reduces a run by one op; returns the results of each member."""
        attributes = {
            **reducing(self.op, self.prescale, self.postscale),
            "process_set_id": set_id(process_set),
        }
        one = run[0]
        if len(run) > 1:
            reduced = ops.perseus_allreduce_each(
                [each.tensors[0] for each in run],
                names=[each.name for each in run],
                priorities=[each.priority for each in run],
                name=f"{one.name}_and_{len(run) - 1}_more",
                **attributes,
            )
            return [[result] for result in reduced]
        attributes["priority"] = one.priority
        if len(one.members) == 1:
            return [[ops.horovod_allreduce(one.tensors[0], name=one.name, **attributes)]]
        return [ops.horovod_grouped_allreduce(one.tensors, name=one.name, **attributes)]

    def _gathered(
        self, name: str, slices: tf.IndexedSlices, process_set: ProcessSet
    ) -> tf.IndexedSlices:
        name = f"HorovodAllgather_{name}"
        with tf.device(self.device_sparse):
            return gathered_slices(
                slices, self.op, self.prescale, self.postscale, name, process_set
            )


class GradientReduction:
    """Reduces lists of gradients: dense ones at the same time, those of the first variables first.

    In eager mode a function reduces them, because eager operations run one after the other.

    Args:
      name: the scope of the operations, which is a part of their names.
      sparse_as_dense: convert IndexedSlices to tensors before they are reduced.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      groups: gradients to reduce as one operation: the number of groups, or lists of variables.
      process_set: the ranks that take part; on others gradients are not changed.
      scale_local_gradients: divide the gradients of local variables by the number of ranks, like
        those of others.

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
        factor = checked_predivide(gradient_predivide_factor, op)
        if op == Adasum and set_id(process_set) != WORLD:
            raise NotImplementedError("Adasum takes the ranks of the world, and no process set")
        scales = (1.0 / factor, factor) if op == Average else (1.0, 1.0)
        self._plan = _Plan(name, device_dense, device_sparse, compression, op, *scales)
        self.process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        listed = checked_groups(groups, is_variable, reference, "variables")
        self._groups = (
            listed
            if listed is None or isinstance(listed, int)
            else tuple(tuple(references(group)) for group in listed)
        )
        self.scale_local_gradients = scale_local_gradients
        self.local_variables = LocalVariables(reference)

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Reduce | None = None
    ) -> list[Any]:
        """Returns the gradients in their order: reduced, and those of local variables scaled.

        Args:
          gradients: tensors, IndexedSlices and None, one for each of `variables`; None stays None.
          reduce: reduces those of the variables that are not local, in place of self.reduce.
        """
        scale = functools.partial(divided, self.process_set)
        return self.local_variables.reduce_others(
            gradients,
            variables,
            reduce or self.reduce,
            scale if self.scale_local_gradients else None,
        )

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None = None,
        use_generic_names: bool = False,
    ) -> list[Any]:
        """Returns the reduced gradients in their order; None for a variable without one.

        Ranks match a gradient by its position, so `variables` must be the same on all ranks. A
        variable may have a gradient on all ranks or on none.

        Args:
          use_generic_names: match by the position only, not by names of variables or by the scopes
            in which this is called. Without variables, it is always so.
        """
        if variables is None:
            variables, use_generic_names = [None] * len(gradients), True
        results = [self._dense(gradient) for gradient in gradients]
        ours = [i for i, gradient in enumerate(results) if gradient is not None]
        if not ours or not _takes_part(self.process_set):
            return results
        names = tuple(
            f"grad_{i}" if use_generic_names else f"grad_{i}_{short_name(variables[i])}"
            for i in ours
        )
        refs = [i if variables[i] is None else reference(variables[i]) for i in ours]
        groups = tuple(tuple(group) for group in self._grouped(refs))
        plan = self._plan._replace(names=names, groups=groups)
        with _scope(use_generic_names):
            reduced = in_graph(_Plan.reduce, self.process_set, plan)([results[i] for i in ours])
        for i, gradient in zip(ours, reduced, strict=True):
            results[i] = gradient
        return results

    def _dense(self, gradient: Any) -> Any:
        if self._sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
            return tf.convert_to_tensor(gradient)
        return gradient

    def _grouped(self, refs: list[Any]) -> list[Sequence[int]]:
        """Returns the positions in `refs` that are reduced as one; usually one each."""
        if isinstance(self._groups, int):
            parts = split_list(range(len(refs)), min(self._groups, len(refs)))
            return [part for part in parts if part]
        if self._groups is None:
            return [[i] for i in range(len(refs))]
        place = {ref: i for i, ref in enumerate(refs)}
        groups = [[place.pop(ref) for ref in group if ref in place] for group in self._groups]
        return sorted([*filter(None, groups), *([i] for i in place.values())], key=min)


def _in_runs(sent: list[_Sent]) -> list[list[_Sent]]:
    """Groups small gradients of one type, in their order, into runs of at most RUN."""
    if is_in_loop():
        # In a loop they run one after the other. If shapes differ on one rank, its order would
        # differ, and all ranks would wait in place of getting an error.
        return [[one] for one in sent]
    runs: list[list[_Sent]] = []
    open_runs: dict[Any, list[_Sent]] = {}
    for one in sent:
        dtype = one.tensors[0].dtype
        run = open_runs.get(dtype) if one.is_small() else None
        if run is None or len(run) == RUN:
            run = []
            runs.append(run)
            if one.is_small():
                open_runs[dtype] = run
        run.append(one)
    return runs


def divided(process_set: ProcessSet, gradient: Any) -> Any:
    """Returns the gradient of a local variable divided by the number of ranks."""
    if isinstance(gradient, tf.IndexedSlices):
        values = divided(process_set, gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size_op(set_id(process_set)), gradient.dtype)


def _scope(is_outermost: bool) -> contextlib.AbstractContextManager[Any]:
    """Leaves all scopes of names, if the caller's may differ from those of other ranks."""
    if tf.executing_eagerly() or not is_outermost:
        return contextlib.nullcontext()
    outermost: contextlib.AbstractContextManager[Any]
    outermost = tf.compat.v1.get_default_graph().name_scope(None)
    return outermost


def _takes_part(process_set: ProcessSet) -> bool:
    """Returns whether this rank reduces anything when it is called now.

    A graph always contains the operations, because it may run later, when there are other ranks.
    Raises ValueError if the set is not registered.
    """
    set_id(process_set)
    if not tf.executing_eagerly():
        return True
    return bool(process_set.included()) and (process_set.size() or 0) > 1


def _identity(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape
        )
    return tf.identity(gradient)
