"""An agent without a launcher: how long its ranks go on, and what it keeps of them."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perseus.elastic import messages
from perseus.elastic.agent_report import AgentReport, WorkerReport
from perseus.elastic.host_table import Change
from perseus.elastic.owner import NextWorld
from perseus.run import agent_protocol as protocol
from perseus.run import job_folder
from perseus.run.driver_log import DriverLog
from perseus.run.kept_output import MOST_BYTES, KeptOutput
from perseus.run.without_launcher import WithoutLauncher


def said(**words: object) -> bytes:
    return json.dumps(words).encode()


def report(log: DriverLog) -> WorkerReport:
    whole = {"process": 1, "ranks": [json.loads(json.dumps(log.report(5)))], "dropped": {}}
    return AgentReport.parse(whole).workers[5]


def test_the_log_says_what_a_rank_and_the_driver_said_last() -> None:
    log = DriverLog()
    assert report(log) == WorkerReport(5, None, False, 0, 0, None, 0, False, False, 0, 0, False)
    log.hear(said(says="ready", failure="", commits=2))
    assert (report(log).is_waiting, report(log).commits) == (True, 2)
    log.tell(messages.world_message(5, NextWorld(3, [4, 5], 6, 7, 0), "a:1", {}))
    log.hear(said(says="begun", call=1))
    log.tell(messages.change_message(8, Change.ADDED, 0.0))
    log.hear(said(says="drain"))
    assert report(log) == WorkerReport(5, None, False, 2, 3, 1, 8, True, False, 1, 0, True)
    log.hear(said(says="finished", call=1))
    assert (report(log).has_finished, report(log).is_in_function) == (True, False)
    assert report(log).returned == 1
    log.hear(said(says="ready", failure="", commits=2))
    log.tell(messages.refusal("why"))
    assert not report(log).is_waiting
    log.end(-9)
    assert report(log).status == -9


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"says": "ready"}',
        b'{"says": "ready", "commits": "2"}',
        b'{"says": "ready", "failure": 7}',
        b'{"says": "change", "number": "7"}',
        b'{"says": "world", "worker": 5, "meeting": 1, "workers": [4], "change": 0}',
        b'{"says": "world", "worker": 5, "meeting": 1, "workers": 5, "change": 0}',
    ],
)
def test_the_log_ignores_what_makes_no_sense(message: bytes) -> None:
    log = DriverLog()
    log.hear(message)
    log.tell(message)
    assert messages.parse(message) is None
    assert report(log) == WorkerReport(5, None, False, 0, 0, None, 0, False, False, 0, 0, False)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[WithoutLauncher]:
    """One whose launcher has died, with rank 5."""
    (tmp_path / job_folder.LOCK).touch()
    how = {"folder": str(tmp_path), "name": "a", "secret": "s", "wait": 100, "limit": 1000}
    with selectors.DefaultSelector() as selector:
        made = WithoutLauncher(how, selector, lambda *_: None, lambda: None)
        made.add_rank(5)
        made.launcher_died()
        yield made
        made.close()


def test_a_rank_that_waits_in_vain_is_told_so_and_then_killed(alone: WithoutLauncher) -> None:
    alone.says(protocol.TO_DRIVER, 5, said(says="ready", failure="", commits=0))
    now = time.monotonic()
    assert now + 99 < alone.next_deadline() <= now + 100
    assert alone.abandoned(now + 99) == []
    assert alone.abandoned(now + 100) == [5]
    alone.is_told(5, alone.farewell())
    assert alone.abandoned(now + 101) == []
    assert alone.next_deadline() == now + 130
    assert alone.to_kill(now + 129) == []
    assert alone.to_kill(now + 130) == [5]
    assert alone.to_kill(now + 131) == []


def test_a_rank_that_has_left_in_time_is_not_killed(alone: WithoutLauncher) -> None:
    alone.says(protocol.TO_DRIVER, 5, said(says="ready", failure="", commits=0))
    now = time.monotonic()
    assert alone.abandoned(now + 100) == [5]
    alone.says(protocol.EXIT, 5, b"1")
    assert alone.to_kill(now + 200) == []


def test_ranks_elsewhere_go_on_alone_no_longer_than_they_may(alone: WithoutLauncher) -> None:
    now = time.monotonic()
    assert now + 999 < alone.next_deadline() <= now + 1000
    assert not alone.is_over(now + 999)
    assert alone.is_over(now + 1000)
    assert not alone.is_over(now + 1001)  # it is told once


def test_another_launcher_gets_what_was_kept(alone: WithoutLauncher) -> None:
    alone.says(protocol.STDOUT, 5, b"a\n")
    alone.says(protocol.NEWS, 5, b"b")
    alone.says(protocol.STDERR, 5, b"c\n")
    sent: list[tuple[int, int, bytes]] = []
    alone.begin_again(lambda *frame: sent.append(frame))
    (kind, _, payload), *rest = sent
    assert kind == protocol.REPORT
    assert AgentReport.parse(json.loads(payload)).workers[5].status is None
    assert rest == [(protocol.STDOUT, 5, b"a\n"), (protocol.STDERR, 5, b"c\n")]
    alone.says(protocol.STDOUT, 5, b"d\n")  # the launcher has it
    assert alone.next_deadline() == float("inf")
    alone.launcher_died()
    alone.begin_again(lambda *frame: sent.append(frame))
    assert len(sent) == 4


def test_output_is_kept_whole_as_long_as_it_is_short() -> None:
    kept = KeptOutput()
    kept.add(0, 0, b"a\nb")
    kept.add(0, 0, b"c\n")
    kept.add(1, 0, b"d\n")
    assert list(kept.take()) == [(0, 0, b"a\nbc\n"), (1, 0, b"d\n")]
    assert list(kept.take()) == []


def test_of_much_output_the_last_whole_lines_are_kept() -> None:
    kept, lines = KeptOutput(), 0
    while not kept.dropped:
        kept.add(0, 0, b"%07d\n" % lines * 1000)
        lines += 1000
    dropped = kept.dropped[0]
    ((_, _, data),) = kept.take()
    assert dropped + len(data) == 8 * lines
    assert MOST_BYTES - 8 <= len(data) <= MOST_BYTES
    assert all(len(line) == 7 for line in data.splitlines())


def test_the_last_line_of_each_rank_is_found() -> None:
    kept = KeptOutput()
    for rank, text in ((0, b"one\ntwo\n\n"), (1, b"\n"), (2, b"x" * 1000)):
        kept.add(rank, protocol.STDERR, text)
    kept.add(3, protocol.STDOUT, b"three\n")
    assert kept.last_lines(protocol.STDERR) == {0: "two", 2: "x" * 400}


def test_what_is_kept_is_added_to_the_files_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "rank.05").mkdir()
    (tmp_path / "rank.05" / "stdout").write_text("before\n")
    kept = KeptOutput()
    kept.add(5, protocol.STDOUT, b"after\n")
    kept.add(12, protocol.STDERR, b"why\n")
    kept.write_to_files(str(tmp_path), 2)
    assert (tmp_path / "rank.05" / "stdout").read_text() == "before\nafter\n"
    assert (tmp_path / "rank.12" / "stderr").read_text() == "why\n"


def test_a_line_without_end_is_cut() -> None:
    kept = KeptOutput()
    for _ in range(5):
        kept.add(0, 0, b"x" * MOST_BYTES)
    ((_, _, data),) = kept.take()
    assert MOST_BYTES <= len(data) <= 2 * MOST_BYTES


def test_the_last_agent_to_leave_removes_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "1.0.job"
    path.mkdir()
    (path / job_folder.LOCK).touch()
    (tmp_path / "1.0.socket").touch()
    folder = job_folder.open_job_folder(str(path))
    listeners = {name: job_folder.listen(folder, f"{name}.socket") for name in ("a", "b")}
    listeners["a"].close()
    job_folder.leave_job_folder(folder, str(path), "a", {"process": 1}, has_finished=False)
    assert job_folder.read_json(folder, "a.report") == {"process": 1}
    assert job_folder.living_agents(folder) == ["b.socket"]
    listeners["b"].close()
    job_folder.leave_job_folder(folder, str(path), "b", {"process": 2}, has_finished=False)
    os.close(folder)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_leaves_the_folder_to_whoever_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "1.0.job"
    path.mkdir()
    (path / job_folder.LOCK).touch()
    folder = job_folder.open_job_folder(str(path))
    lock = job_folder.take_lock(folder)
    assert lock is not None
    assert job_folder.take_lock(folder, 0.1) is None
    job_folder.listen(folder, "a.socket").close()
    job_folder.leave_job_folder(folder, str(path), "a", {"process": 1}, has_finished=False)
    assert job_folder.read_json(folder, "a.report") == {"process": 1}
    os.close(lock)
    os.close(folder)


def test_the_folder_stays_for_agents_elsewhere_until_training_has_finished(tmp_path: Path) -> None:
    path = tmp_path / "1.0.job"
    path.mkdir()
    (path / job_folder.LOCK).touch()
    folder = job_folder.open_job_folder(str(path))
    job_folder.write_whole(folder, job_folder.STATE, '{"has_others": true}')
    for has_finished in (False, True):
        assert path.exists()
        job_folder.listen(folder, "a.socket").close()
        job_folder.leave_job_folder(folder, str(path), "a", {}, has_finished=has_finished)
    os.close(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        job_folder.open_job_folder(str(tmp_path))


@pytest.mark.parametrize("whole", [{}, {"process": 1, "ranks": [{}], "dropped": {}}, {"ranks": 3}])
def test_a_report_that_makes_no_sense_is_refused(whole: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        AgentReport.parse(whole)
