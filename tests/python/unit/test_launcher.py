"""Jobs of real processes, without the engine: how they start, fail and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perseus.run.environment import exported
from perseus.run.hosts import Host, assign
from perseus.run.job import Job
from perseus.run.launcher import Launcher
from perseus.run.output import Output, Stream
from perseus.run.rendezvous import ServedRendezvous

# A job of three ranks that never end by themselves; each says its process id and that of a child.
ENDLESS = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
child.wait()
"""
LAUNCH_ENDLESS = f"""
import sys
from perseus.run.hosts import Host, assign
from perseus.run.job import Job
from perseus.run.launcher import Launcher
from perseus.run.output import Output
job = Job([sys.executable, "-c", {ENDLESS!r}], assign([Host("localhost", 3)], 3), "00")
sys.exit(Launcher(job, Output(3)).run())
"""


class Run:
    def __init__(self, size: int, script: str, **options: object):
        self.lines: dict[Stream, list[str]] = {"stdout": [], "stderr": []}
        sinks = {
            name: lambda data, lines=lines: lines.append(data.decode().rstrip("\n"))
            for name, lines in self.lines.items()
        }
        job = Job(
            command=[sys.executable, "-S", "-c", script],
            slots=assign([Host("localhost", size)], size),
            secret="5ec4e7",
            **options,  # type: ignore[arg-type]
        )
        self.launcher = Launcher(job, Output(size, sinks=sinks))
        began = time.monotonic()
        self.status = self.launcher.run()
        self.seconds = time.monotonic() - began

    @property
    def failure(self) -> str:
        assert self.launcher.failure
        return self.launcher.failure.message


def test_ranks_learn_their_place_under_both_names() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")
    script = f"""
import os
for prefix in ("PERSEUS", "HOROVOD"):
    print(prefix, *[os.environ[prefix + "_" + name] for name in {names}])
"""
    run = Run(2, script)
    assert run.status == 0
    assert sorted(run.lines["stdout"]) == [
        "[0]<stdout>:HOROVOD 0 2 0 2 0 1 localhost",
        "[0]<stdout>:PERSEUS 0 2 0 2 0 1 localhost",
        "[1]<stdout>:HOROVOD 1 2 1 2 0 1 localhost",
        "[1]<stdout>:PERSEUS 1 2 1 2 0 1 localhost",
    ]


def test_ranks_get_the_secret_the_rendezvous_and_the_settings() -> None:
    script = """
import os
print(*[os.environ["PERSEUS_" + name] for name in ("SECRET", "RENDEZVOUS", "LOG_LEVEL")])
"""
    run = Run(
        1,
        script,
        rendezvous=ServedRendezvous(lambda host: f"{host}:7"),
        environment={"PERSEUS_LOG_LEVEL": "info"},
    )
    assert run.lines["stdout"] == ["[0]<stdout>:5ec4e7 localhost:7 info"]


def test_the_secret_is_on_no_command_line() -> None:
    script = """
import os, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert os.environ["PERSEUS_SECRET"].encode() not in path.read_bytes()
    except OSError:
        pass
"""
    assert Run(1, script).status == 0


def test_a_rank_reads_nothing_from_stdin() -> None:
    assert Run(1, "import sys; assert sys.stdin.read() == ''").status == 0


def test_much_output_arrives_whole() -> None:
    run = Run(2, "for i in range(20000): print('line', i)")
    for rank in range(2):
        mine = [line for line in run.lines["stdout"] if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}]<stdout>:line {i}" for i in range(20000)]


def test_a_failing_rank_ends_the_job_and_is_named() -> None:
    run = Run(
        3, "import os, time; os.environ['PERSEUS_RANK'] == '1' and os._exit(3); time.sleep(100)"
    )
    assert run.status == 3
    assert run.seconds < 5
    assert run.failure == "rank 1 on host localhost exited with code 3"
    assert (
        "perseusrun: rank 1 on host localhost exited with code 3; ending the other 2"
        in (run.lines["stderr"])
    )


def test_a_rank_killed_by_a_signal_is_named_with_it() -> None:
    script = """
import os, signal, time
os.environ["PERSEUS_RANK"] == "0" and os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(100)
"""
    run = Run(2, script)
    assert run.status == 128 + signal.SIGSEGV
    assert run.seconds < 5
    assert run.failure.startswith("rank 0 on host localhost was killed by SIGSEGV")


def test_ranks_that_ignore_sigterm_are_killed() -> None:
    script = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["PERSEUS_RANK"] == "0": os._exit(1)
time.sleep(100)
"""
    run = Run(2, script, grace=0.5)
    assert run.status == 1
    assert 1.5 <= run.seconds < 5


def test_the_others_may_say_what_they_saw_of_a_failure() -> None:
    script = """
import os, time
if os.environ["PERSEUS_RANK"] == "0": os._exit(1)
time.sleep(0.3)
print("rank 0 is gone")
"""
    assert "[1]<stdout>:rank 0 is gone" in Run(2, script).lines["stdout"]


def test_a_rank_that_ends_well_leaves_the_others_alone() -> None:
    script = """
import os, time
if os.environ["PERSEUS_RANK"] == "0": os._exit(0)
time.sleep(0.5)
print("done")
"""
    run = Run(2, script)
    assert run.status == 0
    assert run.lines["stdout"] == ["[1]<stdout>:done"]


def test_a_command_that_does_not_exist_is_named() -> None:
    launcher = Launcher(
        Job(["no-such-program"], assign([Host("localhost", 2)], 2), "00"), Output(2)
    )
    assert launcher.run() == 127
    assert launcher.failure
    assert launcher.failure.message == (
        "rank 0 on host localhost: cannot start 'no-such-program': No such file or directory"
    )


def test_a_host_that_cannot_be_reached_is_named_with_the_reason() -> None:
    from perseus.run.remote_shell import RemoteShell

    shell = RemoteShell(command=["sh", "-c", "echo no route to $0 >&2; exit 255"])
    job = Job(["true"], assign([Host("192.0.2.1", 1)], 1), "00", remote_shell=shell)
    launcher = Launcher(job, Output(1))
    assert launcher.run() == 1
    assert launcher.failure
    assert launcher.failure.message == (
        "no rank could be started on host 192.0.2.1 (rank 0): no route to 192.0.2.1"
    )


def test_a_host_that_does_not_answer_is_given_up() -> None:
    from perseus.run.remote_shell import RemoteShell

    shell = RemoteShell(command=["sh", "-c", "sleep 1000"])
    job = Job(
        ["true"], assign([Host("192.0.2.1", 1)], 1), "00", remote_shell=shell, start_timeout=1
    )
    launcher = Launcher(job, Output(1))
    assert launcher.run() == 1
    assert launcher.failure
    assert "no answer from host 192.0.2.1 within the start time-out of 1 s" in (
        launcher.failure.message
    )


def test_a_rank_that_waits_for_a_silent_host_is_not_blamed() -> None:
    from perseus.run.remote_shell import RemoteShell

    shell = RemoteShell(command=["sh", "-c", "sleep 1000"])
    slots = assign([Host("localhost", 1), Host("192.0.2.1", 1)], 2)
    # As init does, which gives up a little before the launcher would.
    command = ["sh", "-c", "sleep 3.6; exit 1"]
    launcher = Launcher(Job(command, slots, "00", remote_shell=shell, start_timeout=4), Output(2))
    assert launcher.run() == 1
    assert launcher.failure
    assert launcher.failure.message.startswith("no answer from host 192.0.2.1 within")


def test_a_remote_host_gets_job_and_secret_over_stdin_after_a_greeting() -> None:
    from perseus.run.remote_shell import RemoteShell

    shell = RemoteShell(command=["sh", "-c", 'echo Welcome to $0; unset SETTING; eval "$1"'])
    lines: list[bytes] = []
    job = Job(
        ["sh", "-c", "echo $PERSEUS_RANK $PERSEUS_SECRET $SETTING $PERSEUS_HOSTNAME"],
        assign([Host("192.0.2.1", 1), Host("localhost", 1)], 2),
        "00",
        environment={"SETTING": "7"},
        remote_shell=shell,
    )
    sinks: dict[Stream, object] = {"stdout": lines.append, "stderr": lines.append}
    assert Launcher(job, Output(2, sinks=sinks)).run() == 0  # type: ignore[arg-type]
    assert sorted(lines) == [b"[0]<stdout>:0 00 7 192.0.2.1\n", b"[1]<stdout>:1 00 7 localhost\n"]


def test_what_describes_this_machine_is_not_exported() -> None:
    environment = {"HOME": "/h", "SSH_AUTH_SOCK": "s", "PATH": "/bin", "HOROVOD_X": "1", "_": "x"}
    assert exported(environment) == {"PATH": "/bin", "HOROVOD_X": "1"}


@contextmanager
def endless_job() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A launcher, and the process ids of its ranks and of their children."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH_ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert launcher.stdout
    try:
        lines = [launcher.stdout.readline() for _ in range(3)]
        yield launcher, [int(word) for line in lines for word in line.partition(":")[2].split()]
    finally:
        launcher.kill()
        launcher.communicate()


def wait_until_gone(processes: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        while Path(f"/proc/{process}").exists():
            assert time.monotonic() < deadline, f"process {process} is left"
            time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_ranks_and_their_children(number: signal.Signals) -> None:
    with endless_job() as (launcher, processes):
        os.kill(launcher.pid, number)
        _, errors = launcher.communicate(timeout=5)
        assert launcher.returncode == 128 + number
        assert f"perseusrun: {number.name}: ending 3 ranks" in errors
        wait_until_gone(processes, 1)


def test_a_killed_launcher_leaves_nothing_behind() -> None:
    with endless_job() as (launcher, processes):
        launcher.kill()
        wait_until_gone(processes, 5)
