"""The links between a rank and those with the stages before and after its own.

Chunks go forward, and for each one that the receiver has begun to work on, a word comes back. So
the sender knows how many are under way, and waits while these are as many as the link may hold.
Each direction ends with exactly one message, which carries the failure if there was one. Both ends
of a link read until that has come, so nothing is left that a later training could take for its own.

A rank waits for either neighbour at once: whichever speaks, a condition wakes it up.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import asdict
from typing import Any

import numpy as np

import perseus_core
from perseus.pipeline.layerwise.chunks import Chunk, pack, unpack
from perseus.pipeline.layerwise.failures import Failure
from perseus_core import Handle

__all__ = ["BackwardEnd", "ForwardEnd", "NeighbourFailed"]

#: Tags that nobody is likely to use: of chunks, and of what comes back.
_FORWARD, _BACK = 2_040_001_040, 2_040_001_041
#: What a message without a chunk begins with. A chunk begins with the length of its header.
_WORD, _END = -1, -2

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class NeighbourFailed(Exception):
    """A neighbour says that a stage has failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class _End:
    """One rank's end of a link: what it has sent, and one receive that is always posted.

    For the thread that trains, except for the callback, which only notifies `awake`.
    """

    def __init__(
        self, peer: int, process_set: int, tags: tuple[int, int], awake: threading.Condition
    ) -> None:
        self._peer, self._set, self._awake = peer, process_set, awake
        self._send_tag, self._receive_tag = tags
        self._sent: deque[Handle[None]] = deque()
        self._is_over = False  # the peer has said its last
        self._receive: Handle[perseus_core.Message] | None = None
        self._post()

    def _post(self) -> None:
        self._receive = perseus_core.irecv(
            self._peer,
            tag=self._receive_tag,
            process_set=self._set,
            callback=self._notify,
        )

    def _notify(self, _: object) -> None:
        with self._awake:
            self._awake.notify()

    def _send(self, message: Bytes) -> None:
        while self._sent and self._sent[0].poll():
            self._sent.popleft().wait()
        handle = perseus_core.isend(message, self._peer, tag=self._send_tag, process_set=self._set)
        self._sent.append(handle)

    def has_news(self) -> bool:
        return self._receive is not None and self._receive.poll()

    def look(self) -> None:
        """Takes what has come. Raises NeighbourFailed, or AbortedError if the peer is gone."""
        while self._receive is not None and self._receive.poll():
            message: Bytes = self._receive.wait().array
            self._receive = None
            kind = int(message[:8].view(np.int64)[0])
            if kind == _END:
                self._is_over = True
                self._check_end(bytes(message[8:]))
                return
            self._post()
            self._take(message)

    def _check_end(self, text: bytes) -> None:
        if text:
            raise NeighbourFailed(Failure(**json.loads(text)))

    def _take(self, message: Bytes) -> None:
        raise NotImplementedError

    def end(self, failure: Failure | None) -> None:
        """Sends the last message of this direction."""
        text = json.dumps(asdict(failure)).encode() if failure else b""
        self._send(_marked(_END, text))

    def is_over(self) -> bool:
        return self._is_over

    def finish_sends(self) -> None:
        while self._sent:
            self._sent.popleft().wait()


class ForwardEnd(_End):
    """Where this rank's results go: the link to the rank of the next stage.

    Args:
      room: chunks that may be under way: sent, and not begun by the receiver.
    """

    def __init__(self, peer: int, process_set: int, room: int, awake: threading.Condition) -> None:
        self._room = room
        super().__init__(peer, process_set, (_FORWARD, _BACK), awake)

    def has_room(self) -> bool:
        return self._room > 0

    def put(self, chunk: Chunk) -> None:
        """Sends a chunk; has_room must hold."""
        self._room -= 1
        self._send(pack(chunk))

    def _take(self, message: Bytes) -> None:
        self._room += 1


class BackwardEnd(_End):
    """Where this rank's input comes from: the link to the rank of the previous stage."""

    def __init__(self, peer: int, process_set: int, awake: threading.Condition) -> None:
        self._came: deque[Bytes] = deque()
        super().__init__(peer, process_set, (_BACK, _FORWARD), awake)

    def has_chunk(self) -> bool:
        return bool(self._came)

    def get(self) -> Chunk:
        """Returns the next chunk; has_chunk must hold. The sender may send another."""
        self._send(_marked(_WORD))
        return unpack(self._came.popleft())

    def _take(self, message: Bytes) -> None:
        self._came.append(message)


def _marked(kind: int, text: bytes = b"") -> Bytes:
    return np.frombuffer(bytearray(kind.to_bytes(8, "little", signed=True) + text), np.uint8)
