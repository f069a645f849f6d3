"""Batch normalization with the statistics of all ranks' batches together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from perseus.common.reduce_ops import Sum
from perseus.tensorflow.horovod.mpi_ops import size
from perseus.tensorflow.horovod.reductions import allreduce

__all__ = ["SyncBatchNormalization"]


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """A BatchNormalization that uses mean and variance over all ranks' batches while training.

    The batches may differ in size. Every rank must run the layer equally often.

    Args:
      fused: must be false, because no fused kernel waits for other ranks.
      kwargs: arguments of BatchNormalization.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        # Keras 2 has the argument, Keras 3 does not.
        if hasattr(tf.keras.layers.BatchNormalization, "_fused_can_be_used"):
            kwargs["fused"] = False
        super().__init__(**kwargs)

    # The one place in which both Keras 2 and 3 compute a batch's statistics.
    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if tf.executing_eagerly() and size() == 1:
            return mean, variance
        mask = kwargs.get("mask", args[-1] if args else None)
        # Differences of sums of squares lose digits; float64 has enough of them.
        wide_mean, wide_variance = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        count = tf.cast(self._values_per_channel(inputs, mask, mean), tf.float64)
        own = [tf.ones_like(wide_mean), wide_mean, wide_variance + tf.square(wide_mean)]
        # A rank without values has no mean.
        sums = allreduce(tf.math.multiply_no_nan(tf.stack(own), count), op=Sum)
        joint_mean = sums[1] / sums[0]
        joint_variance = sums[2] / sums[0] - tf.square(joint_mean)
        return tf.cast(joint_mean, mean.dtype), tf.cast(joint_variance, variance.dtype)

    @staticmethod
    def _values_per_channel(inputs: Any, mask: Any, mean: Any) -> Any:
        if mask is not None:
            return tf.reduce_sum(tf.cast(mask, tf.int64))
        return tf.size(inputs, tf.int64) // tf.size(mean, tf.int64)
