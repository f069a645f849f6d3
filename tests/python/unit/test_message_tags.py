"""Tests the records in which a launcher and its agents talk when mpirun has started the agents."""

from __future__ import annotations

import struct

import pytest

from perseus.run.agent_protocol import NotAuthenticError
from perseus.run.message_tags import MOST_RECORD_BYTES, TAG_BYTES, Session, record_bytes

SAID = [b"a", b"words " * 100, b"", bytes(100_000)]


def ends(secret: bytes = b"secret", transcript: bytes = b"said") -> tuple[Session, Session]:
    return (
        Session(secret, transcript, b"launcher", b"agent"),
        Session(secret, transcript, b"agent", b"launcher"),
    )


def sealed() -> tuple[bytes, Session]:
    launcher, agent = ends()
    return b"".join(map(launcher.sealer.seal, SAID)), agent


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
def test_records_arrive_whole_in_whatever_pieces(piece: int) -> None:
    stream, agent = sealed()
    opened = []
    for begin in range(0, len(stream), piece):
        opened += agent.opener.open(stream[begin : begin + piece])
    assert opened == SAID


def test_the_pieces_of_a_record_are_joined() -> None:
    launcher, agent = ends()
    record = launcher.sealer.seal(b"two ", memoryview(b"pieces"))
    assert len(record) == record_bytes(len(b"two pieces"))
    assert list(agent.opener.open(record)) == [b"two pieces"]


def test_each_direction_has_a_key_of_its_own() -> None:
    launcher, _ = ends()
    with pytest.raises(NotAuthenticError):
        list(launcher.opener.open(launcher.sealer.seal(b"sent back")))


@pytest.mark.parametrize("other", [ends(b"another"), ends(b"secret", b"other words")])
def test_another_secret_or_transcript_gives_other_keys(other: tuple[Session, Session]) -> None:
    launcher, _ = ends()
    with pytest.raises(NotAuthenticError):
        list(other[1].opener.open(launcher.sealer.seal(b"words")))


def test_every_changed_bit_is_noticed_before_anything_after_it_is_believed() -> None:
    first = record_bytes(len(SAID[0]))
    second = record_bytes(len(SAID[1]))
    for place in range(first + second):
        for bit in (1, 128):
            stream, agent = sealed()
            changed = bytearray(stream)
            changed[place] ^= bit
            opened: list[bytes] = []
            with pytest.raises(NotAuthenticError):
                for record in agent.opener.open(bytes(changed)):
                    opened.append(record)
            assert opened == (SAID[:1] if place >= first else [])


def test_a_length_is_refused_as_soon_as_it_is_there() -> None:
    _, agent = ends()
    with pytest.raises(NotAuthenticError):
        list(agent.opener.open(struct.pack("!I", 1 << 31) + bytes(TAG_BYTES)))


def test_not_even_the_other_end_may_send_a_record_without_bound() -> None:
    launcher, agent = ends()
    with pytest.raises(NotAuthenticError):
        list(agent.opener.open(launcher.sealer.seal(bytes(MOST_RECORD_BYTES + 1))[:100]))


def test_nothing_is_believed_after_a_record_that_was_not() -> None:
    launcher, agent = ends()
    wrong = bytes(record_bytes(1))
    for _ in range(2):
        with pytest.raises(NotAuthenticError):
            list(agent.opener.open(wrong))
    with pytest.raises(NotAuthenticError):
        list(agent.opener.open(launcher.sealer.seal(b"right")))
