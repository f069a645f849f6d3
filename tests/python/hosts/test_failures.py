"""A rank, a host or the launcher that is lost ends the job everywhere, and is named."""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from netlab import Hosts, netlab

ENDLESS = """
import os, time
print(os.getpid(), flush=True)
time.sleep(1000)
"""


def wait_until_gone(processes: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if Path(f"/proc/{process}").exists()]:
        assert time.monotonic() < deadline, f"processes {left} are left"
        time.sleep(0.01)


def test_a_rank_that_fails_on_another_host_ends_the_job(hosts: Hosts) -> None:
    script = """
import os, time
os.environ["PERSEUS_RANK"] == "2" and os._exit(7)
time.sleep(1000)
"""
    began = time.monotonic()
    result = hosts.run_script("0:2,1:2", script)
    assert result.returncode == 7
    assert time.monotonic() - began < 5
    assert "perseusrun: rank 2 on host 10.86.0.2 exited with code 7; ending the other 3" in (
        result.stderr
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_launcher_leaves_nothing_on_other_hosts(
    hosts: Hosts, number: signal.Signals
) -> None:
    with hosts.start("0:1,1:1", sys.executable, "-c", ENDLESS) as job:
        assert job.stdout
        processes = [int(job.stdout.readline().partition(":")[2]) for _ in range(2)]
        os.kill(job.pid, number)
        wait_until_gone(processes, 5)
        job.communicate(timeout=10)


def test_a_host_that_vanishes_becomes_an_error_on_both_sides(hosts: Hosts) -> None:
    script = """
import numpy, perseus_core
perseus_core.init()
perseus_core.allreduce(numpy.ones(4), name="before")
print("ready", flush=True)
try:
    while True:
        perseus_core.allreduce(numpy.ones(100000), name="during")
except RuntimeError as error:
    print("error:", error, flush=True)
"""
    program = hosts.folder / "program.py"
    program.write_text(script)
    with hosts.start("0:1,1:1", sys.executable, str(program), PERSEUS_PEER_TIMEOUT="2") as job:
        assert job.stdout
        assert sorted(job.stdout.readline() for _ in range(2)) == [
            "[0]<stdout>:ready\n",
            "[1]<stdout>:ready\n",
        ]
        try:
            netlab("unplug", "1")
            began = time.monotonic()
            # The pipes to the launcher are not cut: both ranks are heard, in either order.
            of_rank_0, of_rank_1 = sorted(job.stdout.readline() for _ in range(2))
            assert of_rank_0.startswith("[0]<stdout>:error: ")
            assert "rank 1" in of_rank_0
            assert of_rank_1.startswith("[1]<stdout>:error: ")
            assert "rank 0" in of_rank_1
            assert time.monotonic() - began < 3
        finally:
            netlab("plug", "1")
            job.communicate(timeout=30)


STEPS = """
import time, numpy, perseus_core
perseus_core.init()
perseus_core.allreduce(numpy.ones(4), name="before")
print("ready", flush=True)
for _ in range(100):
    perseus_core.allreduce(numpy.ones(100000), name="during")
    time.sleep(0.02)
print("well", flush=True)
"""


def test_a_cut_that_heals_in_time_is_waited_out(hosts: Hosts) -> None:
    """Covers data under way, and connections that have been idle for a while."""
    timeout = 5
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    cut = (0.7 if release >= (6, 15) else 0.45) * timeout
    program = hosts.folder / "program.py"
    program.write_text(STEPS)
    environment = {"PERSEUS_PEER_TIMEOUT": str(timeout)}
    with hosts.start("0:1,1:1", sys.executable, str(program), **environment) as job:
        assert job.stdout
        for _ in range(2):
            job.stdout.readline()
        try:
            netlab("unplug", "1")
            time.sleep(cut)
        finally:
            netlab("plug", "1")
        said, _ = job.communicate(timeout=30)
        assert sorted(said.splitlines()) == ["[0]<stdout>:well", "[1]<stdout>:well"]
        assert job.returncode == 0
