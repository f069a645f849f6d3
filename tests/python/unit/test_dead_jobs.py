"""What killed jobs leave is removed, and what living ones need is not."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseus.elastic import dead_jobs
from perseus.elastic.dead_jobs import how_it_ended_alone, remove_remains
from perseus.elastic.job_record import JobRecord
from perseus.elastic.options import ElasticOptions
from perseus.elastic.outliving import Outliving
from perseus.run import job_folder
from perseus.run.ending import NEVER
from perseus.run.remote_shell import RemoteShell
from perseus.run.start import Request

REQUEST = Request(["true"], 1)
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dead_jobs, "folders", lambda: [tmp_path])
    return tmp_path


@pytest.fixture
def folder(place: Path) -> Iterator[int]:
    folder = os.open(place, os.O_RDONLY)
    yield folder
    os.close(folder)


def make_job(place: Path, name: str) -> int:
    """Makes a job's folder that has not changed for long; returns it."""
    path = place / name
    path.mkdir()
    (path / job_folder.LOCK).touch()
    return job_folder.open_job_folder(str(path))


def has_aged(path: Path) -> None:
    os.utime(path, (time.time() - 100, time.time() - 100))


def test_sockets_of_dead_launchers_are_removed(place: Path, folder: int) -> None:
    for name in ("1.aa.socket", "2.bb.socket", ".3.cc.socket", ".4.dd.socket"):
        job_folder.listen(folder, name).close()
    has_aged(place / ".3.cc.socket")
    living = job_folder.listen(folder, "5.ee.socket")
    (place / "2.bb.job").mkdir()  # somebody may take it over, and listen there again
    (place / "another file").touch()
    remove_remains()
    living.close()
    left = {".4.dd.socket", "2.bb.socket", "2.bb.job", "5.ee.socket", "another file"}
    assert {path.name for path in place.iterdir()} == left


def test_folders_of_dead_jobs_are_removed(place: Path, folder: int) -> None:
    job_folder.listen(folder, "1.aa.socket").close()
    folders = {name: make_job(place, name) for name in ("1.aa.job", "2.bb.agents", "3.cc.job")}
    for name in ("1.aa.job", "2.bb.agents"):
        job_folder.listen(folders[name], "a.socket").close()
        has_aged(place / name)
    remove_remains()
    for each in folders.values():
        os.close(each)
    assert [path.name for path in place.iterdir()] == ["3.cc.job"]  # it may just have begun


def test_folders_of_living_jobs_stay(place: Path) -> None:
    names = ("1.aa.job", "2.bb.job", "3.cc.job")
    folders = [make_job(place, name) for name in names]
    lock = job_folder.take_lock(folders[0])  # it has its launcher
    agent = job_folder.listen(folders[1], "a.socket")
    job_folder.write_whole(folders[2], job_folder.STATE, '{"has_others": true}')
    for name in names:
        has_aged(place / name)
    remove_remains()
    assert sorted(path.name for path in place.iterdir()) == list(names)
    assert lock is not None
    agent.close()
    for fd in (lock, *folders):
        os.close(fd)


def test_how_a_job_ended_alone_is_told_for_a_week(place: Path, folder: int) -> None:
    path = place / "7.aa.job"
    job = make_job(place, path.name)
    ranks = [{"number": number, "status": status} for number, status in ((0, 1), (1, -9), (2, 1))]
    report = {"ranks": ranks, "last_lines": {"0": "no driver", "2": "no driver"}}
    job_folder.listen(job, "a.socket").close()
    job_folder.leave_job_folder(job, str(path), "a", report, has_finished=False)
    os.close(job)
    assert [path.name for path in place.iterdir()] == ["7.aa.ended"]
    assert how_it_ended_alone(7) == (
        "ranks 0 and 2 exited with code 1: no driver; rank 1 was killed by SIGKILL (Killed)"
    )
    job_folder.write_whole(folder, "8.aa.ended", "{}")
    assert how_it_ended_alone(8) == how_it_ended_alone(9) == ""
    remove_remains()
    assert how_it_ended_alone(7)
    os.utime(place / "7.aa.ended", (time.time() - 8 * 86400,) * 2)
    remove_remains()
    assert [path.name for path in place.iterdir()] == ["8.aa.ended"]


@pytest.mark.parametrize(("name", "status"), [("7.aa.job", 0), ("7.aa.agents", 1)])
def test_nothing_is_left_of_a_job_that_ended_well_alone_or_on_another_machine(
    place: Path, name: str, status: int
) -> None:
    path = place / name
    job = make_job(place, path.name)
    job_folder.listen(job, "a.socket").close()
    report = {"ranks": [{"number": 0, "status": status}], "last_lines": {"0": "a warning"}}
    job_folder.leave_job_folder(job, str(path), "a", report, has_finished=True)
    os.close(job)
    assert list(place.iterdir()) == []


def test_an_agent_removes_the_socket_of_a_launcher_that_is_dead(place: Path, folder: int) -> None:
    path = place / "1.aa.socket"
    listener = job_folder.listen(folder, path.name)
    job_folder.remove_socket_of_dead(str(path))
    assert path.exists()
    listener.close()
    job_folder.remove_socket_of_dead(str(path))
    assert not path.exists()
    job_folder.remove_socket_of_dead(str(path))  # there is none any more


def test_an_agent_waits_for_a_launcher_that_is_ending(place: Path, folder: int) -> None:
    path = place / "1.aa.socket"
    closing = threading.Timer(0.2, job_folder.listen(folder, path.name).close)
    closing.start()
    job_folder.remove_socket_of_dead(str(path))
    closing.join()
    assert not path.exists()


def test_a_full_folder_is_left_as_it_was_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full, other = tmp_path / "full", tmp_path / "other"
    monkeypatch.setattr("perseus.elastic.job_record.folders", lambda: [full, other])
    write = os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if str(full) in os.readlink(f"/proc/self/fd/{fd}"):
            raise NO_SPACE
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    record = JobRecord.make("ab" * 32, REQUEST, ElasticOptions(least=1))
    assert Path(record.path).parent == other
    assert list(full.iterdir()) == []
    why = f"not in {full}: No space left on device"
    assert capsys.readouterr().err == f"perseusrun: this job's record is kept in {other}: {why}\n"
    record.close()
    assert list(other.iterdir()) == []


def test_a_record_takes_the_room_of_the_one_before_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perseus.elastic.job_record.folders", lambda: [tmp_path])
    record = JobRecord.make("ab" * 32, REQUEST, ElasticOptions(least=1))
    state = Path(record.path) / job_folder.STATE
    said: list[str] = []
    outliving = Outliving(record, RemoteShell(), 30, said.append)
    outliving.save(lambda: {"meeting": 1}, [])
    write = job_folder.write_whole
    has_room_for = 1

    def write_if_there_is_room(folder: int, name: str, text: str) -> None:
        if has_room_for <= state.exists():
            raise NO_SPACE
        write(folder, name, text)

    monkeypatch.setattr(job_folder, "write_whole", write_if_there_is_room)
    outliving.save(lambda: {"meeting": 2}, [])
    assert said == []
    assert '"meeting": 2' in state.read_text()
    has_room_for = 0
    for _ in range(3):
        outliving.save(lambda: {"meeting": 3}, [])
    assert not state.exists()
    assert said == [
        "nobody can take this job over while its record cannot be written: No space left on device"
    ]
    assert outliving.save_again_at < NEVER
    has_room_for = 2
    outliving.save(lambda: {"meeting": 4}, [])
    assert said[1:] == ["this job can be taken over again"]
    assert outliving.save_again_at == NEVER
    outliving.close()


def test_a_file_that_cannot_be_written_leaves_no_part_of_it(place: Path, folder: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            job_folder.write_whole(folder, job_folder.STATE, "x" * 11)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(place.iterdir()) == []
