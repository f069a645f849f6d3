"""Messages between two ends of a connection that have one key, and how they find that out.

    server  Greeting  a random challenge
    client  Answer    a challenge of its own, and its proof: the HMAC over its role and both
    server  Welcome   an empty record

The keys of the connection come from the key and from all of that, so the welcome proves that the
server has the key, too, and nothing that was said on another connection is believed. Then all is
cut into records (perseus/run/message_tags.py), whose MACs cover their direction, number and length.
A message is a record that holds the length of a pickled object, and records that hold the object.
A text is records that hold pieces of it, and an empty one.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
import struct
import time
from typing import Any, BinaryIO

import cloudpickle

from perseus.dropin.runner.common.util import secret
from perseus.run.agent_protocol import NotAuthenticError
from perseus.run.call_back import (
    CHALLENGE_BYTES,
    PAUSE_BETWEEN_CALLS_SECONDS,
    seconds_until,
    take,
)
from perseus.run.free_port import connect
from perseus.run.message_tags import Session, record_bytes

__all__ = ["ANSWER_BYTES", "Wire", "call", "enter", "pickled"]

ANSWER_BYTES = CHALLENGE_BYTES + secret.DIGEST_LENGTH
_AS_CLIENT, _AS_SERVER = b"horovod client", b"horovod server"
_WELCOME = b""
_LENGTH = struct.Struct("!Q")
_PIECE_BYTES = 1 << 20  # of an object, in a record
_PIECE_CHARACTERS = 1 << 16  # of a text, in a record
_MOST_BYTES = 1 << 30  # of a message


class Wire:
    """Writes and reads objects with MACs.

    The MACs count the records, so each end of a connection needs a wire of its own. What wires
    that were made from a key alone have written, another of that key reads.

    Args:
      transcript: what both ends have said before, which makes the keys those of this connection.
      mine, other: the roles of the ends, each of which has a key of its own.
    """

    def __init__(self, key: bytes, transcript: bytes = b"", mine: bytes = b"", other: bytes = b""):
        self._session = Session(key, transcript, mine, other)

    def write(self, obj: Any, wfile: BinaryIO) -> None:
        self.write_pickled(pickled(obj), wfile)

    def write_pickled(self, message: bytes, wfile: BinaryIO) -> None:
        wfile.write(self._seal(_LENGTH.pack(len(message))))
        for begin in range(0, len(message), _PIECE_BYTES):
            wfile.write(self._seal(memoryview(message)[begin : begin + _PIECE_BYTES]))
        wfile.flush()

    def stream(self, stream: Any, wfile: BinaryIO) -> None:
        """Copies a text stream to its end."""
        while text := stream.read(_PIECE_CHARACTERS):
            wfile.write(self._seal(text.encode()))
            wfile.flush()
        wfile.write(self._seal(b""))
        wfile.flush()

    def read(self, rfile: BinaryIO) -> Any:
        """EOFError if the connection ends before; RuntimeError if it is not the next message of
        somebody who has the key."""
        return self.read_object(rfile, self.read_length(rfile))

    def read_length(self, rfile: BinaryIO) -> int:
        """Reads the beginning of a message, which `read_object` goes on with."""
        (length,) = _LENGTH.unpack(self._next_record(rfile))
        if length > _MOST_BYTES:
            raise RuntimeError(f"a message of {length} bytes was announced; no message is so long")
        return int(length)

    def read_object(self, rfile: BinaryIO, length: int) -> Any:
        message = bytearray()
        while len(message) < length:
            message += self._next_record(rfile)
        return cloudpickle.loads(message)

    def read_stream(self, rfile: BinaryIO, stream: Any) -> None:
        """Copies what `stream` has written at the other end into a text stream."""
        while piece := self._next_record(rfile):
            stream.write(piece.decode())

    def welcome(self) -> bytes:
        """Returns the server's first word, which `is_welcome` recognizes."""
        return self._seal(_WELCOME)

    def is_welcome(self, data: bytes) -> bool:
        with contextlib.suppress(RuntimeError):
            return self._open(data) == _WELCOME
        return False

    def _seal(self, data: bytes | memoryview) -> bytes:
        return self._session.sealer.seal(data)

    def _open(self, data: bytes) -> bytes | None:
        """Takes what was received, and returns the next record if it is whole now."""
        try:
            return next(self._session.opener.open(data), None)
        except NotAuthenticError:
            raise RuntimeError(
                "a message's digest is wrong: the sender does not have our key, or somebody in "
                "between has changed, left out, repeated or added something"
            ) from None

    def _next_record(self, rfile: Any) -> bytes:
        data = b""
        while (record := self._open(data)) is None:
            data = rfile.read1(_PIECE_BYTES)
            if not data:
                raise EOFError("the connection ended within a message")
        return record


def pickled(obj: Any) -> bytes:
    """Returns the bytes of a message."""
    message: bytes = cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    if len(message) > _MOST_BYTES:
        raise ValueError(f"a message is {len(message)} bytes; it must be {_MOST_BYTES} at most")
    return message


def enter(key: bytes, challenge: bytes, answer: bytes) -> Wire:
    """Returns the server's wire, whose first word is its welcome. PermissionError unless the answer
    proves, for this challenge, that the client has the key."""
    nonce, proof = answer[:CHALLENGE_BYTES], answer[CHALLENGE_BYTES:]
    if not secret.check_digest(key, _AS_CLIENT + challenge + nonce, proof):
        raise PermissionError("a client does not have our key")
    return Wire(key, challenge + answer, _AS_SERVER, _AS_CLIENT)


def call(address: tuple[str, int], key: bytes, deadline: float) -> tuple[socket.socket, Wire]:
    """Connects to a server until it takes us in: in a flood of strangers it drops some callers.

    It drops those without the key in the same way. Raises OSError if it does not take us in before
    the deadline, by time.monotonic, or does not have the key.
    """
    while True:
        connection = connect(address, seconds_until(deadline))
        try:
            return connection, _shake_hands(connection, key, deadline)
        except BaseException as error:
            connection.close()
            is_dropped = isinstance(error, (BrokenPipeError, ConnectionResetError))
            if not is_dropped or time.monotonic() + PAUSE_BETWEEN_CALLS_SECONDS > deadline:
                raise
        time.sleep(PAUSE_BETWEEN_CALLS_SECONDS)


def _shake_hands(connection: socket.socket, key: bytes, deadline: float) -> Wire:
    challenge = take(connection, CHALLENGE_BYTES, deadline)
    nonce = secrets.token_bytes(CHALLENGE_BYTES)
    answer = nonce + secret.compute_digest(key, _AS_CLIENT + challenge + nonce)
    connection.sendall(answer)
    wire = Wire(key, challenge + answer, _AS_CLIENT, _AS_SERVER)
    if not wire.is_welcome(take(connection, record_bytes(len(_WELCOME)), deadline)):
        raise PermissionError("the process that answers there does not have our key")
    connection.settimeout(None)
    return wire
