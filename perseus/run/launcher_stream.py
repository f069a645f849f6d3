"""An agent's end of the stream to its launcher: the agent's stdin and stdout.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run.agent_protocol import COUNT, HEADER, INPUT_TAKEN, LARGE_PIECE
else:  # in an agent, which is run by its path
    from agent_protocol import COUNT, HEADER, INPUT_TAKEN, LARGE_PIECE


def send(kind: int, rank: int, payload: bytes) -> None:
    frame = HEADER.pack(kind, rank, len(payload)) + payload
    while frame:
        try:
            frame = frame[os.write(sys.stdout.fileno(), frame) :]
        except OSError:
            return  # the launcher has gone; stdin ends, too


def send_taken(count: int) -> None:
    send(INPUT_TAKEN, 0, COUNT.pack(count))


def receive(length: int) -> bytes:
    return b"".join(_pieces(length))


def receive_file(length: int) -> int:
    """Receives bytes into a new file that has no name, and returns its descriptor.

    It is in memory; before Linux 3.17, which lacks memfd_create, it is in the folder for temporary
    files.
    """
    try:
        file = os.memfd_create("perseus-stdin")
    except (AttributeError, OSError):
        import tempfile

        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    for piece in _pieces(length):
        while piece:
            piece = piece[os.write(file, piece) :]
    return file


def _pieces(length: int) -> Iterator[bytes]:
    """Yields what the launcher sends, in all these many bytes."""
    while length:
        piece = os.read(sys.stdin.fileno(), min(length, LARGE_PIECE))
        if not piece:
            sys.exit(0)  # the launcher gave up before it sent a job
        length -= len(piece)
        yield piece
