"""Horovod through horovod.torch."""

import horovod.torch as hvd

from contest.contenders.hvd import HvdContender


class Contender(HvdContender):
    def __init__(self) -> None:
        super().__init__(hvd)
