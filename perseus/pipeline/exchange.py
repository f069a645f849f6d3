"""The messages of one call of a pipeline, all of which are known before it begins.

Receives are posted ahead, and sends wait for nobody. If this rank fails, it refuses what it has not
sent, so that no other rank waits for it, and takes what the others send, so that none of them waits
and nothing is left over for the next call.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

import perseus.torch.horovod as hvd
from perseus.pipeline.calls import Call, OtherCallError
from perseus_core import WORLD, HorovodInternalError
from perseus_core.refusals import refuse_message

__all__ = ["Exchange", "Greeting", "Messages"]

#: What a rank sends and what it receives: by tag, the other rank.
Messages: TypeAlias = "tuple[Mapping[int, int], Mapping[int, int]]"


@dataclass(frozen=True)
class Greeting:
    """The first message from a rank to its peers in a call.

    Attributes:
      tag: of the message, from and to each.
      peers: the ranks that have messages for this one, or take some, in some call.
      messages: gives this rank's messages in a call.
    """

    call: Call
    tag: int
    peers: Iterable[int]
    messages: Callable[[Call], Messages]


class Exchange:
    """Only the thread that makes it may use it. `greeting` is None where calls cannot differ."""

    def __init__(self, messages: Messages, greeting: Greeting | None = None) -> None:
        self._sends, self._receives = messages
        self._unsent = dict(self._sends)
        self._leaving: collections.deque[int] = collections.deque()
        self._greeting = greeting
        self._unheard: dict[int, int] = {}  # receives of greetings, by rank
        self._others: dict[int, Call] = {}  # the calls of peers that are in another one
        if greeting is not None:
            said = torch.tensor([greeting.call.code])
            for peer in greeting.peers:
                self._leaving.append(hvd.isend(said, peer, greeting.tag, priority=1 << 20))
                self._unheard[peer] = hvd.irecv(None, peer, greeting.tag)
        self._coming = {tag: hvd.irecv(None, rank, tag) for tag, rank in self._receives.items()}

    def send(self, tag: int, message: torch.Tensor, priority: int) -> None:
        """Starts a send. The tensor must not change until finish returns."""
        dest = self._unsent.pop(tag)
        self._leaving.append(hvd.isend(message, dest, tag, priority=priority))
        while self._leaving and hvd.poll(self._leaving[0]):  # whose memory may go
            hvd.synchronize(self._leaving.popleft())

    def take(self, tag: int) -> torch.Tensor:
        """Waits for a message. Raises HorovodInternalError if its sender has failed, and
        OtherCallError if it is in another call."""
        self._hear(self._receives[tag])
        message: hvd.Message = hvd.synchronize(self._coming.pop(tag))
        return message.tensor

    def finish(self) -> None:
        """Waits until all that was sent has been taken. Raises what take does."""
        for peer in list(self._unheard):
            self._hear(peer)
        while self._leaving:
            hvd.synchronize(self._leaving.popleft())

    def give_up(self, error: BaseException) -> None:
        """Ends the exchange after this rank has failed. The other ranks are told why."""
        for peer in list(self._unheard):
            with contextlib.suppress(HorovodInternalError, OtherCallError):
                self._hear(peer)
        for peer, call in self._others.items():
            self._expect_messages_of(call, peer)
        for tag, dest in self._unsent.items():
            refuse_message(True, WORLD, dest, tag, error)
        self._unsent.clear()
        for handle in (*self._coming.values(), *self._leaving):
            with contextlib.suppress(HorovodInternalError, ValueError):
                hvd.synchronize(handle)
        self._coming.clear()
        self._leaving.clear()

    def _hear(self, peer: int) -> None:
        """Waits for a peer's greeting, once."""
        if peer not in self._unheard:
            return
        assert self._greeting is not None, "it has been sent"
        heard: hvd.Message = hvd.synchronize(self._unheard.pop(peer))
        call = Call.of(int(heard.tensor))
        if call != self._greeting.call:
            self._others[peer] = call
            raise OtherCallError(
                f"rank {peer} is in {call}, and this rank in {self._greeting.call}"
            )

    def _expect_messages_of(self, call: Call, peer: int) -> None:
        """Adds what a peer in another call sends to this rank, and waits for from it."""
        assert self._greeting is not None, "the peer has sent its own"
        sends, receives = self._greeting.messages(call)
        for tag, rank in sends.items():
            if rank == peer and tag not in self._sends:
                self._unsent[tag] = peer
        for tag, rank in receives.items():
            if rank == peer and tag not in self._receives:
                self._coming[tag] = hvd.irecv(None, peer, tag)
