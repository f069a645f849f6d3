"""`perseusrun --drain` finds the user's jobs by their sockets, and says what is wrong."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from socket_path import short

from perseus.elastic import drain_command, drain_socket
from perseus.elastic.drain_command import DrainError, drain_host
from perseus.elastic.drain_socket import DrainSocket
from perseus.run import job_folder

Start = Callable[..., DrainSocket]


def drain(host: str) -> str:
    if host == "none":
        raise ValueError("the job has no host 'none'; it has a")
    return f"drained {host}"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Has sockets answer in a thread, as launchers do, each as of another process."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # Other jobs of this user may have their sockets in the second folder.
    monkeypatch.setattr(drain_command, "folders", lambda: drain_socket.folders()[:1])
    selector = selectors.DefaultSelector()
    read, write = os.pipe()
    selector.register(read, selectors.EVENT_READ, lambda: None)
    opened: list[DrainSocket] = []

    def serve() -> None:
        while True:
            for key, _ in selector.select():
                if key.fd == read:
                    return
                key.data()

    def make(process: int, command: str = "train.py") -> DrainSocket:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: process)
            made = DrainSocket(selector, ["python", command], drain)
        assert made.open() == ""
        opened.append(made)
        return made

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield make
    finally:
        os.write(write, b"x")
        thread.join()
        for one in opened:
            one.close()
        for end in (read, write):
            os.close(end)


def test_the_only_job_is_found(start: Start) -> None:
    start(7)
    assert drain_host("a") == "job 7: host a is drained; drained a"


def test_one_of_several_jobs_has_to_be_named(start: Start) -> None:
    start(7)
    start(8, "other.py")
    with pytest.raises(DrainError) as error:
        drain_host("a")
    assert str(error.value) == (
        "2 elastic jobs run here; say which, with --job: 7: python train.py; 8: python other.py"
    )
    assert drain_host("a", 8).startswith("job 8: ")
    with pytest.raises(DrainError, match="no elastic job 9"):
        drain_host("a", 9)


def test_the_socket_is_beside_the_job_s_folder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "7.0123abcd.job"
    path.mkdir()
    (path / job_folder.LOCK).touch()
    with selectors.DefaultSelector() as selector:
        one = DrainSocket(selector, ["true"], drain, str(path))
        assert one.open() == ""
        assert one.path == str(tmp_path / "7.0123abcd.socket")
        assert Path(one.path).is_socket()
        folder = job_folder.open_job_folder(str(path))
        job_folder.remove_job_folder(folder, str(path))
        os.close(folder)
        assert list(tmp_path.iterdir()) == []
        one.close()


def test_the_launcher_says_why_it_cannot(start: Start) -> None:
    start(7)
    with pytest.raises(DrainError, match="job 7: the job has no host 'none'; it has a"):
        drain_host("none")


def test_a_job_that_has_ended_is_none(start: Start) -> None:
    start(7).close()
    with pytest.raises(DrainError, match="no elastic job of this user"):
        drain_host("a")


def test_a_launcher_that_does_not_answer_is_waited_for_no_longer_than_said(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_command, "_SECONDS_TO_ANSWER", 0.2)
    folder = tmp_path / "perseus"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stopped:
        with short(folder / "5.0.socket") as address:
            stopped.bind(address)
        stopped.listen()
        with pytest.raises(DrainError, match="job 5 does not answer"):
            drain_host("a", 5)


def test_no_more_callers_than_allowed_are_kept_and_none_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    selector = selectors.DefaultSelector()
    one = DrainSocket(selector, ["python"], drain)
    assert one.open() == ""
    assert one.next_deadline() == drain_socket.NEVER
    (path,) = (tmp_path / "perseus").iterdir()
    callers = []
    for _ in range(12):
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.settimeout(10)
        with short(path) as address:
            caller.connect(address)
        callers.append(caller)
        for key, _ in selector.select(0):
            key.data()
    for caller in callers[8:]:
        assert caller.recv(1) == b""
    assert one.next_deadline() <= time.monotonic() + 5
    one.handle_deadlines(one.next_deadline() + 5)
    for caller in callers:
        assert caller.recv(1) == b""
        caller.close()
    one.close()
    assert not list((tmp_path / "perseus").iterdir())


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = tmp_path / "perseus"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    monkeypatch.setattr(drain_socket, "folders", lambda: [folder])
    monkeypatch.setattr(drain_command, "folders", lambda: [folder])
    one = DrainSocket(selectors.DefaultSelector(), ["python"], drain)
    assert "belongs to" in one.open()
    with pytest.raises(DrainError, match="belongs to"):
        drain_host("a")
    one.close()
