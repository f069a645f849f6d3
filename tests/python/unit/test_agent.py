"""Tests agents that mpirun starts: they call the launcher back, and do nothing for a stranger."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from perseus.run import agent, call_back, launcher_stream
from perseus.run.host_connection import AGENT

KEY = "ab" * 32
CHALLENGE = b"c" * call_back.CHALLENGE_BYTES
Prove = Callable[[bytes, bytes], bytes]


def as_launcher(key: str, rank: int = 1) -> Prove:
    def prove(hello: bytes, _: bytes) -> bytes:
        _, *others = call_back.HELLO.unpack(hello)
        return call_back.proof(
            key, call_back.AS_LAUNCHER, CHALLENGE, call_back.HELLO.pack(rank, *others)
        )

    return prove


def with_another_challenge(hello: bytes, _: bytes) -> bytes:
    return call_back.proof(KEY, call_back.AS_LAUNCHER, bytes(call_back.CHALLENGE_BYTES), hello)


def what_the_agent_said(_: bytes, proof: bytes) -> bytes:
    return proof


class CalledBack:
    """Runs rank 1's agent against a launcher that tells it to make a file, and records the outcome.

    The launcher proves itself by `prove`, after it has sent the agent away `sent_away` times.
    """

    def __init__(self, folder: Path, prove: Prove, *, sent_away: int = 0):
        job = {
            "command": ["touch", str(folder / "made")],
            "directory": str(folder),
            "environment": {},
            "grace": 1,
            "local_size": 1,
            "shares_processors": False,
            "ranks": [{"rank": 1, "environment": {}}],
            "payload_bytes": 0,
            "forwards_stdin": False,
        }
        text = json.dumps(job).encode()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            where = f"127.0.0.1 {listener.getsockname()[1]} {KEY}"
            called = subprocess.Popen(
                [*AGENT, "--call-back"],
                env={**os.environ, call_back.CALL_BACK: where, "OMPI_COMM_WORLD_RANK": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(sent_away):
                listener.accept()[0].close()
            connection, _ = listener.accept()
        with connection, connection.makefile("rb") as said:
            connection.sendall(CHALLENGE)
            hello, proof = said.read(call_back.HELLO.size), said.read(call_back.PROOF_BYTES)
            assert proof == call_back.proof(KEY, call_back.AS_AGENT, CHALLENGE, hello)
            connection.sendall(prove(hello, proof) + struct.pack("!I", len(text)) + text)
            _, self.errors = called.communicate(timeout=30)
        self.status = called.returncode
        self.ran = (folder / "made").exists()


def test_it_does_what_the_launcher_says(tmp_path: Path) -> None:
    call = CalledBack(tmp_path, as_launcher(KEY))
    assert (call.status, call.ran, call.errors) == (0, True, "")


def test_it_calls_again_when_it_is_sent_away_in_a_crowd(tmp_path: Path) -> None:
    call = CalledBack(tmp_path, as_launcher(KEY), sent_away=2)
    assert (call.status, call.ran, call.errors) == (0, True, "")


def test_it_gives_up_when_the_launcher_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv(call_back.CALL_BACK, f"127.0.0.1 {closed.getsockname()[1]} {KEY}")
    monkeypatch.setattr(sys, "argv", ["agent.py", "--call-back"])
    with pytest.raises(SystemExit, match=r"rank 1 is not started: .*: Connection refused"):
        agent.main()


@pytest.mark.parametrize(
    "prove",
    [as_launcher("00" * 32), as_launcher(KEY, rank=0), with_another_challenge, what_the_agent_said],
    ids=["another key", "another rank", "another challenge", "its own proof"],
)
def test_it_does_nothing_for_a_stranger(tmp_path: Path, prove: Prove) -> None:
    call = CalledBack(tmp_path, prove)
    assert (call.status, call.ran) == (1, False)
    assert call.errors.startswith("rank 1 is not started: perseusrun at 127.0.0.1 port ")
    assert call.errors.endswith(" the process that answers there does not know the job's key\n")


def test_it_waits_for_a_proof_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_back, "CALL_BACK_SECONDS", 0.2)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(call_back.CALL_BACK, f"127.0.0.1 {silent.getsockname()[1]} {KEY}")
        monkeypatch.setattr(sys, "argv", ["agent.py", "--call-back"])
        with pytest.raises(SystemExit, match=r"rank 1 is not started: .* timed out"):
            agent.main()


def test_without_memfd_create_ranks_read_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memfd_create(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    read, write = os.pipe()
    os.write(write, b"hello")
    monkeypatch.setattr(os, "memfd_create", no_memfd_create)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    file = launcher_stream.receive_file(5)
    assert list(tmp_path.iterdir()) == []
    with open(f"/proc/self/fd/{file}", "rb") as again:
        assert again.read() == b"hello"
    os.close(file)
    os.close(write)
