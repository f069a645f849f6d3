"""The messages of one step of a pipeline, all of which are known before it begins.

Receives are posted ahead, and sends wait for nobody. If this rank fails, it refuses what it has not
sent, so that no other rank waits for it, and takes what the others send, so that none of them waits
and nothing is left over for the next step.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Mapping

import torch

import perseus.torch.horovod as hvd
from perseus_core import WORLD, HorovodInternalError
from perseus_core.refusals import refuse_message

__all__ = ["Exchange"]


class Exchange:
    """Only the thread that makes it may use it.

    Args:
      sends: the rank that each message goes to, by tag.
      receives: the rank that each message comes from, by tag.
    """

    def __init__(self, sends: Mapping[int, int], receives: Mapping[int, int]) -> None:
        self._unsent = dict(sends)
        self._coming = {tag: hvd.irecv(None, source, tag) for tag, source in receives.items()}
        self._leaving: collections.deque[int] = collections.deque()

    def send(self, tag: int, message: torch.Tensor, priority: int) -> None:
        """Starts a send. The tensor must not change until finish returns."""
        dest = self._unsent.pop(tag)
        self._leaving.append(hvd.isend(message, dest, tag, priority=priority))
        while self._leaving and hvd.poll(self._leaving[0]):  # whose memory may go
            hvd.synchronize(self._leaving.popleft())

    def take(self, tag: int) -> torch.Tensor:
        """Waits for a message. Raises HorovodInternalError if its sender has failed."""
        message: hvd.Message = hvd.synchronize(self._coming.pop(tag))
        return message.tensor

    def finish(self) -> None:
        """Waits until all that was sent has been taken."""
        while self._leaving:
            hvd.synchronize(self._leaving.popleft())

    def give_up(self, error: Exception) -> None:
        """Ends the exchange after this rank has failed. The other ranks are told why."""
        for tag, dest in self._unsent.items():
            refuse_message(True, WORLD, dest, tag, error)
        self._unsent.clear()
        for handle in (*self._coming.values(), *self._leaving):
            with contextlib.suppress(HorovodInternalError, ValueError):
                hvd.synchronize(handle)
        self._coming.clear()
        self._leaving.clear()
