"""What the launcher believes of an agent: frames of its own ranks that make sense."""

from __future__ import annotations

import socket

import pytest

from perseus.run import agent_protocol as protocol
from perseus.run.host_connection import AgentConnection


def read(kind: int, rank: int, payload: bytes) -> tuple[int, str]:
    """Has an agent of ranks 1 and 2 send a frame; returns how many were taken, and what is said."""
    ours, end = socket.socketpair()
    with ours:
        connection = AgentConnection(
            "h1", [1, 2], ours.makefile("wb", 0), ours.makefile("rb", 0), {}
        )
    with end:
        end.send(protocol.MAGIC + protocol.HEADER.pack(kind, rank, len(payload)) + payload)
        taken = len(list(connection.read()))
        assert connection.ended == bool(connection.given_up_because)
        connection.close(0)
    return taken, connection.given_up_because


@pytest.mark.parametrize(
    ("kind", "rank", "payload"),
    [
        (protocol.STDOUT, 1, b"\xff"),
        (protocol.EXIT, 2, b"-9"),
        (protocol.ERROR, 2, b"\xff"),
        (protocol.INPUT_TAKEN, 0, b"\0\0\0\1"),
        (protocol.HERE, 0, b""),
        (protocol.DRAIN, 1, b""),
        (protocol.REPORT, 0, b"{}"),
    ],
)
def test_a_frame_that_an_agent_may_send_is_taken(kind: int, rank: int, payload: bytes) -> None:
    assert read(kind, rank, payload) == (1, "")


@pytest.mark.parametrize("kind", sorted(protocol.OF_RANKS))
@pytest.mark.parametrize("rank", [0, 3, 2**32 - 1])
def test_an_agent_speaks_of_its_own_ranks_only(kind: int, rank: int) -> None:
    assert read(kind, rank, b"0") == (0, f"its agent spoke of rank {rank}, which it does not have")


@pytest.mark.parametrize(
    ("kind", "rank", "payload"),
    [
        (protocol.EXIT, 1, b"x"),
        (protocol.EXIT, 1, b""),
        (protocol.EXIT, 1, "²".encode()),
        (protocol.EXIT, 1, b"9" * 100_000),
        (protocol.INPUT_TAKEN, 0, b"\1"),
        (protocol.DRAIN + 1, 1, b""),
    ],
)
def test_an_agent_that_sends_nonsense_is_given_up(kind: int, rank: int, payload: bytes) -> None:
    assert read(kind, rank, payload) == (
        0,
        f"its agent sent nonsense (kind {kind}, {len(payload)} bytes)",
    )
