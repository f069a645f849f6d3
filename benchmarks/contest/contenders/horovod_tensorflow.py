"""Horovod through horovod.tensorflow, as its tapes and optimizers do."""

from __future__ import annotations

from collections.abc import Sequence

import horovod.tensorflow as hvd
import tensorflow as tf

from contest.contenders.hvd_graph import HvdGraphContender


class Contender(HvdGraphContender):
    def __init__(self) -> None:
        super().__init__(hvd, hvd.DistributedGradientTape, hvd._make_allreduce_grads_fn)

    def summed(self, gradients: Sequence[tf.Tensor], names: Sequence[str]) -> list[tf.Tensor]:
        # Horovod's operations are inside branches (tf.cond). Control dependencies apply to a branch
        # as a whole and not to its tensors: snapshots pass the memory on, and wait.
        sums = super().summed([_snapshot(each) for each in gradients], names)
        return [_snapshot(each) for each in sums]


def _snapshot(tensor: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.Snapshot(input=tensor)
