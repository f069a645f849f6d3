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
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perseus.run import agent, call_back
from perseus.run import agent_protocol as protocol
from perseus.run.host_connection import AGENT, Frame, HostConnection
from perseus.run.launcher_stream import LauncherStream
from perseus.run.message_tags import Sealer

KEY = "ab" * 32
CHALLENGE = b"c" * call_back.CHALLENGE_BYTES
Prove = Callable[[bytes, bytes], tuple[bytes, Sealer]]


def as_launcher(
    key: str = KEY,
    *,
    rank: int = 1,
    challenge: bytes = CHALLENGE,
    role: bytes = call_back.AS_LAUNCHER,
    verdict: bytes = call_back.WELCOME,
) -> Prove:
    """Gives the verdict in a session of the launcher, or of one that knows or has heard otherwise.

    Returns that, and what seals the next words of the session.
    """

    def prove(hello: bytes, proof: bytes) -> tuple[bytes, Sealer]:
        _, *others = call_back.HELLO.unpack(hello)
        answer = call_back.HELLO.pack(rank, *others) + proof
        sealer = call_back.session(key, challenge, answer, role).sealer
        return sealer.seal(verdict), sealer

    return prove


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
            assert proof == call_back.proof(KEY, CHALLENGE, hello)
            _, _, where_called, _ = call_back.HELLO.unpack(hello)
            assert where_called == call_back.pack_address(connection.getsockname())
            welcome, sealer = prove(hello, proof)
            connection.sendall(welcome + sealer.seal(struct.pack("!I", len(text)) + text))
            _, self.errors = called.communicate(timeout=30)
        self.status = called.returncode
        self.ran = (folder / "made").exists()


def test_it_does_what_the_launcher_says(tmp_path: Path) -> None:
    call = CalledBack(tmp_path, as_launcher())
    assert (call.status, call.ran, call.errors) == (0, True, "")


def test_it_calls_again_when_it_is_sent_away_in_a_crowd(tmp_path: Path) -> None:
    call = CalledBack(tmp_path, as_launcher(), sent_away=2)
    assert (call.status, call.ran, call.errors) == (0, True, "")


def test_it_starts_nothing_when_its_call_came_to_another_address(tmp_path: Path) -> None:
    call = CalledBack(tmp_path, as_launcher(verdict=call_back.NOT_CALLED_HERE))
    assert (call.status, call.ran) == (1, False)
    assert call.errors.startswith(f"rank 1 on host {socket.gethostname()} is not started: it call")
    assert " but its call came to another address: " in call.errors


def test_it_starts_nothing_when_the_job_is_not_the_launchers(tmp_path: Path) -> None:
    def of_another_session(hello: bytes, proof: bytes) -> tuple[bytes, Sealer]:
        welcome, _ = as_launcher()(hello, proof)
        return welcome, as_launcher("00" * 32)(hello, proof)[1]

    call = CalledBack(tmp_path, of_another_session)
    assert (call.status, call.ran, call.errors) == (1, False, "")


def test_it_gives_up_when_the_launcher_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv(call_back.CALL_BACK, f"127.0.0.1 {closed.getsockname()[1]} {KEY}")
    monkeypatch.setattr(sys, "argv", ["agent.py", "--call-back"])
    with pytest.raises(
        SystemExit, match=r"rank 1 on host \S+ is not started: .*: Connection refused"
    ):
        agent.main()


@pytest.mark.parametrize(
    "prove",
    [
        as_launcher("00" * 32),
        as_launcher(rank=0),
        as_launcher(challenge=bytes(call_back.CHALLENGE_BYTES)),
        as_launcher(role=call_back.AS_AGENT),
    ],
    ids=["another key", "another rank", "another challenge", "its own keys"],
)
def test_it_does_nothing_for_a_stranger(tmp_path: Path, prove: Prove) -> None:
    call = CalledBack(tmp_path, prove)
    assert (call.status, call.ran) == (1, False)
    name = f"rank 1 on host {socket.gethostname()}"
    assert call.errors.startswith(f"{name} is not started: perseusrun at 127.0.0.1 port ")
    assert call.errors.endswith(" the process that answers there does not know the job's key\n")


def test_it_waits_for_a_proof_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_back, "CALL_BACK_SECONDS", 0.2)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(call_back.CALL_BACK, f"127.0.0.1 {silent.getsockname()[1]} {KEY}")
        monkeypatch.setattr(sys, "argv", ["agent.py", "--call-back"])
        with pytest.raises(SystemExit, match=r"rank 1 on host \S+ is not started: .* timed out"):
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
    file = LauncherStream().receive_file(5)
    assert list(tmp_path.iterdir()) == []
    with open(f"/proc/self/fd/{file}", "rb") as again:
        assert again.read() == b"hello"
    os.close(file)
    os.close(write)


def test_a_rank_that_has_closed_its_driver_socket_may_still_be_told_something(
    tmp_path: Path,
) -> None:
    # As a rank that is killed has, until it is reaped.
    program = (
        f"import os, time; os.close(int(os.environ['{protocol.DRIVER_FD}']));"
        " print('closed', flush=True); time.sleep(0.3)"
    )
    job = {
        "command": [sys.executable, "-c", program],
        "directory": str(tmp_path),
        "environment": {},
        "ranks": [{"rank": 0, "environment": {}}],
        "local_size": 1,
        "shares_processors": False,
        "forwards_stdin": False,
        "has_driver": True,
        "grace": 1.0,
    }
    connection = HostConnection("localhost", [0], AGENT, job)
    connection.flush()
    frames: list[Frame] = []
    deadline = time.monotonic() + 30
    while not connection.ended and time.monotonic() < deadline:
        new = list(connection.read())
        frames += new
        if any(frame.kind == protocol.STDOUT for frame in new):
            for _ in range(100):
                connection.tell(0, b"{}")
        time.sleep(0.001)
    connection.read_stderr()
    assert connection.stderr_tail == b""
    assert [frame.payload for frame in frames if frame.kind == protocol.EXIT] == [b"0"]
    connection.close(1)
