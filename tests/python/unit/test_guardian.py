"""Agents that are killed, and processes that an agent may not kill: what is left of the job."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from test_launcher import wait_until_gone

from perseus.run import processes

LAUNCHER = [sys.executable, "-m", "perseus.run", "-np", "2", "--quiet", "--no-tag"]
_PR_CAPBSET_DROP, _CAP_KILL = 24, 5
#: Prints the process ids of the agent, of the rank, of its child and of a daemon.
FAMILY = """
import os, subprocess
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
daemon = subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"],
                        stdout=subprocess.PIPE)
print(os.getppid(), os.getpid(), child.pid, int(daemon.stdout), flush=True)
child.wait()
"""


@contextmanager
def family() -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """Yields a launcher, the process id of its agent, and those of all that ranks have started."""
    command = [*LAUNCHER, sys.executable, "-S", "-c", FAMILY]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout
        ids = [[int(word) for word in launcher.stdout.readline().split()] for _ in range(2)]
        assert ids[0][0] == ids[1][0]
        try:
            yield launcher, ids[0][0], ids[0][1:] + ids[1][1:]
        finally:
            launcher.kill()


def test_nothing_is_left_of_an_agent_that_is_killed() -> None:
    with family() as (launcher, agent, others):
        os.kill(agent, signal.SIGKILL)
        assert launcher.stderr
        said = launcher.stderr.read()
        assert launcher.wait(timeout=30) == 1
        wait_until_gone(others, 5)
    reason = (
        "the connection to host localhost (ranks 0 and 1) ended: its agent was killed by SIGKILL"
    )
    assert said == f"perseusrun: {reason}\n"


def test_nothing_is_left_when_the_guardian_is_killed() -> None:
    with family() as (launcher, agent, others):
        os.kill(int(processes.about(agent)[1]), signal.SIGKILL)
        wait_until_gone([agent, *others], 10)
        assert launcher.wait(timeout=30) == 128 + signal.SIGTERM


def test_a_process_that_we_may_not_kill_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", kill)
    processes.kill(1, signal.SIGKILL)


def give_up_killing_others() -> None:
    """Has root lose the right to signal the processes of other users, as of the next program."""
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_KILL, 0, 0, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user takes root")
def test_a_child_of_another_user_does_not_end_the_agent() -> None:
    script = """
import os, subprocess, sys, time
def change_user(): os.setgroups([]); os.setgid(65534); os.setuid(65534)
child = subprocess.Popen(["sleep", "1000"], preexec_fn=change_user)
print(child.pid, flush=True)
if os.environ["PERSEUS_RANK"] == "1": sys.exit(3)
child.wait()
"""
    began = time.monotonic()
    done = subprocess.run(
        [*LAUNCHER, "--grace", "1", sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=give_up_killing_others,
    )
    sleeping = [int(word) for word in done.stdout.split()]
    assert [processes.began(process) is not None for process in sleeping] == [True, True]
    for process in sleeping:
        os.kill(process, signal.SIGKILL)
    assert done.returncode == 3, done.stderr
    assert done.stderr == (
        "perseusrun: rank 1 on host localhost exited with code 3; ending the other 1\n"
    )
    assert time.monotonic() - began < 30
