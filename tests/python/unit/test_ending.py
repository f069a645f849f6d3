"""How a job ends whose ranks need time to end, with real processes: the grace."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_launcher import Run, wait_until_gone

from perseus.run.ending import AGENT_SECONDS, Ending
from perseus.run.hosts import Host, assign
from perseus.run.job import Job
from perseus.run.launcher import Launcher
from perseus.run.output import Output
from perseus.run.remote_shell import RemoteShell

#: Rank 1 fails once rank 0 can save its work, which that does on SIGTERM and takes a while for.
SAVES = """
import os, pathlib, signal, sys, time
ready = pathlib.Path(sys.argv[1]) / "ready"
def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    (ready.parent / "saved").touch()
    sys.exit(0)
if os.environ["PERSEUS_RANK"] == "1":
    while not ready.exists(): time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
ready.touch()
while True: time.sleep(100)
"""
IGNORES = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
while True: time.sleep(100)
"""
ANOTHER_HOST = RemoteShell(command=["sh", "-c", 'eval "$1"'])


def run(command: list[str], host: str, **options: object) -> tuple[int, list[bytes], float]:
    """Returns the status, the lines on stdout, and how long the job took."""
    lines: list[bytes] = []
    job = Job(command, assign([Host(host, 2)], 2), "00", remote_shell=ANOTHER_HOST, **options)  # type: ignore[arg-type]
    began = time.monotonic()
    output = Output(2, sinks={"stdout": lines.append, "stderr": lambda line: None})
    return Launcher(job, output).run(), lines, time.monotonic() - began


@pytest.mark.parametrize("host", ["localhost", "192.0.2.1"])
def test_a_rank_may_save_its_work_and_nobody_waits_longer(host: str, tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", SAVES, str(tmp_path)]
    status, lines, seconds = run(command, host, grace=60)
    assert status == 3
    assert lines == [b"[0]<stdout>:saved\n"]
    assert seconds < 30


@pytest.mark.parametrize("host", ["localhost", "192.0.2.1"])
def test_a_program_that_a_rank_has_started_gets_the_grace_too(host: str, tmp_path: Path) -> None:
    # SIGTERM ends the shell at once.
    command = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-S", "-c", SAVES, str(tmp_path)]
    script = SAVES.replace("sys.exit(3)", "os.kill(os.getppid(), signal.SIGKILL)")
    command[-2] = script.replace('print("saved", flush=True)', "pass")
    status, _, seconds = run(command, host, grace=60)
    assert status == 128 + signal.SIGKILL
    assert (tmp_path / "saved").exists()
    assert seconds < 30


@pytest.mark.parametrize("host", ["localhost", "192.0.2.1"])
def test_a_rank_that_saves_its_work_keeps_its_own_processes(host: str, tmp_path: Path) -> None:
    """As PyTorch's DataLoader, which raises an exception when one of its workers ends."""
    with_worker = """
import subprocess
worker = subprocess.Popen(["sleep", "1000"])
"""
    script = with_worker + SAVES.replace(
        'print("saved", flush=True)', 'print("worker:", worker.poll(), flush=True)'
    )
    command = [sys.executable, "-S", "-c", script, str(tmp_path)]
    status, lines, seconds = run(command, host, grace=60)
    assert status == 3
    assert lines == [b"[0]<stdout>:worker: None\n"]
    assert seconds < 30  # the workers were ended after their ranks


def test_a_rank_that_is_stopped_does_not_use_up_the_grace(tmp_path: Path) -> None:
    script = """
import os, pathlib, signal, sys, time
file = pathlib.Path(sys.argv[1]) / "process"
if os.environ["PERSEUS_RANK"] == "0":
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
while not file.exists(): time.sleep(0.01)
status = pathlib.Path(f"/proc/{file.read_text()}/status")
while "State:\tT" not in status.read_text(): time.sleep(0.01)
sys.exit(3)
"""
    command = [sys.executable, "-S", "-c", script, str(tmp_path)]
    status, _, seconds = run(command, "localhost", grace=60)
    assert status == 3
    assert seconds < 30


def test_without_grace_ranks_are_killed_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", SAVES, str(tmp_path)]
    status, lines, _ = run(command, "localhost", grace=0)
    assert status == 3
    assert lines == []


def test_a_second_ctrl_c_ends_the_grace() -> None:
    command = [sys.executable, "-m", "perseus.run", "-np", "2", "--grace", "600", "--no-tag"]
    with subprocess.Popen(
        [*command, sys.executable, "-S", "-c", IGNORES],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as launcher:
        assert launcher.stdout and launcher.stderr
        processes = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.send_signal(signal.SIGINT)
        assert launcher.stderr.readline() == "perseusrun: SIGINT: ending 2 ranks\n"
        deadline = time.monotonic() + 30
        # Those that come at once count as the same Ctrl-C.
        while not select.select([launcher.stderr], [], [], 0.1)[0]:
            assert time.monotonic() < deadline
            launcher.send_signal(signal.SIGINT)
        assert launcher.stderr.readline() == "perseusrun: SIGINT again: killing 2 ranks\n"
        assert launcher.wait(timeout=30) == 128 + signal.SIGINT
        wait_until_gone(processes, 5)


def test_a_job_whose_output_nobody_reads_any_more_has_the_grace(tmp_path: Path) -> None:
    script = SAVES.replace('"1"', '"none"').replace(
        "while True: time.sleep(100)",
        """
while True:
    print("line", flush=True)
    time.sleep(0.01)
""",
    )
    command = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, "-S", "-c"]
    with subprocess.Popen(
        [*command, script, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as launcher:
        assert launcher.stdout and launcher.stderr
        assert launcher.stdout.readline().endswith(b"line\n")
        launcher.stdout.close()
        assert launcher.stderr.read() == b""
        assert launcher.wait(timeout=30) == 128 + signal.SIGPIPE
    assert (tmp_path / "saved").exists()


def test_a_job_that_nobody_has_ended_is_not_prolonged_by_the_grace() -> None:
    run = Run(2, "import subprocess; subprocess.Popen(['sleep', '1000'])", grace=600)
    assert run.status == 0
    assert run.seconds < 30


def test_later_failures_do_not_prolong_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    ending = Ending(10)
    ending.begin_in(1)
    assert (ending.terminate_at, ending.give_up_at) == (101, 111 + AGENT_SECONDS)
    now = 101
    ending.terminate()
    now = 105
    ending.begin_in(1)
    assert not ending.interrupt()
    assert (ending.terminate_at, ending.give_up_at) == (float("inf"), 111 + AGENT_SECONDS)
    now = 105.1
    assert not ending.interrupt()
    now = 106
    assert ending.interrupt()
    assert ending.give_up_at == 106 + AGENT_SECONDS
