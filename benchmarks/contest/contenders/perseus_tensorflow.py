"""Perseus through its horovod.tensorflow interface, as its tapes and optimizers do."""

import perseus.tensorflow.horovod as hvd
from contest.contenders.hvd_graph import HvdGraphContender
from perseus.tensorflow.horovod.gradient_reduction import GradientReduction
from perseus.tensorflow.horovod.gradient_tape import DistributedGradientTape


class Contender(HvdGraphContender):
    def __init__(self) -> None:
        super().__init__(hvd, DistributedGradientTape, GradientReduction)
