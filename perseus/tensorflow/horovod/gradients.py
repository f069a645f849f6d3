"""Gradients of the operations. Importing this module registers them with TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from perseus.common.reduce_ops import Average, Sum
from perseus.tensorflow.horovod.op_arguments import node_name
from perseus.tensorflow.plugin import ops

# Attributes that an op's gradient has in common with the op.
_PLACE = ("ignore_name_scope", "process_set_id")
_SCALES = ("prescale_factor", "prescale_rest", "postscale_factor", "postscale_rest")


def _attributes(op: tf.Operation, *names: str) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in names}


def _named(op: tf.Operation, kind: str, grad: tf.Tensor, suffix: str = "grad") -> dict[str, Any]:
    """Returns the name by which ranks match an op of a gradient: in a graph, the gradient's."""
    given = op.get_attr("tensor_name")
    name = given.decode() if isinstance(given, bytes) else given
    if name:
        return {"tensor_name": f"{name}_{suffix}"}
    return _from_gradient(kind, grad)


def _from_gradient(kind: str, grad: tf.Tensor) -> dict[str, Any]:
    return {} if tf.executing_eagerly() else {"name": f"{kind}_{node_name(grad)}"}


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    """Returns the same reduction of the gradient."""
    return ops.horovod_allreduce(
        grad, **_attributes(op, "reduce_op", *_SCALES, *_PLACE), **_named(op, op.type, grad)
    )


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce_grad(op: tf.Operation, *grads: tf.Tensor) -> list[tf.Tensor]:
    reduced: list[tf.Tensor] = ops.horovod_grouped_allreduce(
        list(grads),
        **_attributes(op, "reduce_op", *_SCALES, *_PLACE),
        **_named(op, op.type, grads[0]),
    )
    return reduced


@tf.RegisterGradient("PerseusAllreduceEach")
def _allreduce_each_grad(op: tf.Operation, *grads: tf.Tensor) -> list[tf.Tensor]:
    attributes = _attributes(op, "reduce_op", *_SCALES, "process_set_id")
    return [
        ops.horovod_allreduce(grad, **attributes, **_from_gradient("HorovodAllreduce", grad))
        for grad in grads
    ]


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    """Returns the average of the ranks' gradients on the root, zeros elsewhere."""
    averaged = ops.horovod_allreduce(
        grad, reduce_op=Average, **_attributes(op, *_PLACE), **_named(op, "HorovodAllreduce", grad)
    )
    is_root = tf.equal(ops.horovod_rank(), op.get_attr("root_rank"))
    return tf.where(is_root, averaged, tf.zeros_like(averaged))


@tf.RegisterGradient("HorovodAllgather")
def _allgather_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    return _own_rows(op, op.inputs[0], grad, "")


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather_grad(op: tf.Operation, *grads: tf.Tensor) -> list[tf.Tensor]:
    return [
        _own_rows(op, tensor, grad, f"_{i}")
        for i, (tensor, grad) in enumerate(zip(op.inputs, grads, strict=True))
    ]


def _own_rows(op: tf.Operation, tensor: tf.Tensor, grad: tf.Tensor, suffix: str) -> tf.Tensor:
    """Returns this rank's rows of the average of the ranks' gradients."""
    place = _attributes(op, *_PLACE)
    averaged = ops.horovod_allreduce(
        grad, reduce_op=Average, **place, **_named(op, "HorovodAllreduce", grad, f"grad{suffix}")
    )
    rows = tf.reshape(tf.shape(tensor)[0], [1])
    rows_of_all = ops.horovod_allgather(
        rows, **place, **_named(op, "HorovodAllgather", rows, f"rows{suffix}")
    )
    own = tf.reshape(ops.horovod_rank(), [1])
    ranks = ops.horovod_allgather(
        own, **place, **_named(op, "HorovodAllgather", own, f"ranks{suffix}")
    )
    before = tf.cast(tf.less(ranks, own), tf.int32)
    begin = tf.reduce_sum(rows_of_all * before)
    return averaged[begin : begin + rows[0]]


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_grad(op: tf.Operation, grad: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor | None]:
    """Sends the gradient back to the ranks that the rows came from."""
    attributes = {**_attributes(op, *_PLACE), **_named(op, op.type, grad)}
    returned, _ = ops.horovod_alltoall(grad, op.outputs[1], **attributes)
    return [returned, None]


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_grad(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
    return _gathered(op, grad, "")


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _grouped_reducescatter_grad(op: tf.Operation, *grads: tf.Tensor) -> list[tf.Tensor]:
    return [_gathered(op, grad, f"_{i}") for i, grad in enumerate(grads)]


def _gathered(op: tf.Operation, grad: tf.Tensor, suffix: str) -> tf.Tensor:
    """Concatenates the ranks' gradients, scaled as in Horovod: for a sum also by their number."""
    scales = _attributes(op, *_SCALES)
    factor = (scales["prescale_factor"] + scales["prescale_rest"]) * (
        scales["postscale_factor"] + scales["postscale_rest"]
    )
    place = _attributes(op, *_PLACE)
    grad = grad * tf.cast(factor, grad.dtype)
    if op.get_attr("reduce_op") == Sum:
        size = ops.horovod_size(process_set_id=place["process_set_id"])
        grad *= tf.cast(size, grad.dtype)
    return ops.horovod_allgather(
        grad, **place, **_named(op, "HorovodAllgather", grad, f"grad{suffix}")
    )
