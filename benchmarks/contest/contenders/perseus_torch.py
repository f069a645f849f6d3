"""Perseus through its horovod.torch interface."""

import perseus.torch.horovod as hvd
from contest.contenders.hvd import HvdContender


class Contender(HvdContender):
    def __init__(self) -> None:
        super().__init__(hvd)
