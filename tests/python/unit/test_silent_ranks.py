"""Tests that a stopped rank is an error on the others, and that a busy one is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

from conftest import RunRanks

TIMEOUT = {"PERSEUS_PEER_TIMEOUT": "2"}

STOPPED = """
import os, signal, time, numpy, perseus_core
perseus_core.init()
began = time.monotonic()
for name in ("during", "later"):
    try:
        # Rank 1 may have the first result before the others have it.
        perseus_core.allreduce(numpy.ones(4), name=name)
        if perseus_core.rank() == 1: os.kill(os.getpid(), signal.SIGSTOP)
        perseus_core.allreduce(numpy.ones(4), name=name)
    except perseus_core.HorovodInternalError as error:
        assert error.rank == 1, error
        print(f"after {time.monotonic() - began:.1f} s: {error}", flush=True)
raise SystemExit(1)
"""

BUSY = """
import time, numpy, perseus_core
perseus_core.init()
if perseus_core.rank() == 1:
    end = time.monotonic() + 6
    while time.monotonic() < end: sum(range(1000000))
print(perseus_core.allreduce(numpy.ones(1), perseus_core.ReduceOp.SUM, name="late")[0], flush=True)
"""

STEPS = """
import time, numpy, perseus_core
perseus_core.init()
perseus_core.barrier()
print("ready", flush=True)
end = time.monotonic() + 8
going = True
while going:
    mine = numpy.array(float(time.monotonic() < end))
    going = perseus_core.allreduce(mine, perseus_core.ReduceOp.MIN, name="going") > 0
print("well", flush=True)
"""


def test_a_stopped_rank_is_named_with_what_was_under_way(run_ranks: RunRanks) -> None:
    result = run_ranks(3, STOPPED, environment={**os.environ, **TIMEOUT})
    assert result.returncode != 0
    lines = sorted(line for line in result.stdout.splitlines() if "after" in line)
    assert [line[:3] for line in lines] == ["[0]", "[0]", "[2]", "[2]"], result.stdout
    for line, name in zip(lines, ("during", "later") * 2, strict=True):
        assert f"allreduce of 'allreduce.{name}'" in line
        assert "lost rank 1 on " in line
        assert "PERSEUS_PEER_TIMEOUT" in line
        found = re.search(r"after ([\d.]+) s", line)
        assert found
        assert float(found[1]) < 5
    assert "rank 1 " in result.stderr


def test_a_rank_that_computes_for_longer_than_the_time_out_is_not_lost(run_ranks: RunRanks) -> None:
    result = run_ranks(3, BUSY, environment={**os.environ, **TIMEOUT})
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split()) == [f"[{rank}]<stdout>:3.0" for rank in range(3)]


def test_a_job_that_is_stopped_as_a_whole_goes_on(run_ranks: RunRanks) -> None:
    command = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, "-c", STEPS]
    environment = {**os.environ, **TIMEOUT}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as job:
        assert job.stdout
        for _ in range(2):
            assert "ready" in job.stdout.readline()
        ranks = _processes_below(job.pid)
        assert len(ranks) >= 2
        for process in ranks:
            os.kill(process, signal.SIGSTOP)
        time.sleep(4)
        for process in ranks:
            os.kill(process, signal.SIGCONT)
        rest, _ = job.communicate(timeout=60)
    assert job.returncode == 0
    assert rest.count("well") == 2


def _processes_below(parent: int) -> list[int]:
    listing = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True)
    parents = [tuple(map(int, line.split())) for line in listing.stdout.splitlines()]
    found = [parent]
    for above in found:
        found += [process for process, its_parent in parents if its_parent == above]
    return found[1:]


KILLED = """
import os, signal, threading, time, numpy
import perseus_core as core
core.init()
core.allreduce(numpy.ones(4), name="before")
moment = float(core.broadcast(numpy.array(time.time() + 0.5), 0, name="moment"))
told = threading.Event()

def say(name, error):  # two threads do
    text = f"{name} after {time.time() - moment:.3f} s: {error}\\n"
    os.write(1, text.encode())

if core.rank() == 1:
    time.sleep(moment - time.time())
    os.kill(os.getpid(), signal.SIGKILL)

def called(handle):
    try:
        handle.wait()
    except core.HorovodInternalError as error:
        say("callback", error)
    told.set()

core.allreduce_async(numpy.ones(9), name="with a callback", callback=called)
handle = core.allreduce_async(numpy.ones(1_000_000), name="large")
for name, wait in (("large", handle.wait), ("later", lambda: core.barrier())):
    try:
        wait()
    except core.HorovodInternalError as error:
        say(name, error)
told.wait()
raise SystemExit(1)
"""


def test_a_killed_rank_is_an_error_everywhere_within_a_second(run_ranks: RunRanks) -> None:
    result = run_ranks(4, KILLED)
    lines = [line for line in result.stdout.splitlines() if " after " in line]
    assert len(lines) == 9, result.stdout + result.stderr
    for line in lines:
        found = re.search(r"after (-?[\d.]+) s: .*rank 1 on ", line)
        assert found, line
        assert float(found[1]) < 1
    for text in ("allreduce of 'allreduce.large'", "allreduce of 'allreduce.with a callback'"):
        assert len([line for line in lines if text in line]) == 3
    assert "rank 1 on host localhost was killed by SIGKILL" in result.stderr


IN_INIT = """
import os, time
import perseus_core as core
if os.environ["PERSEUS_RANK"] == "2":
    time.sleep(1)
    os._exit(5)
began = time.monotonic()
try:
    core.init()
except core.HorovodInternalError as error:
    print(f"init after {time.monotonic() - began:.1f} s: {error}", flush=True)
    time.sleep(0.5)
    raise SystemExit(1)
"""


def test_a_rank_that_dies_before_it_comes_ends_the_job(run_ranks: RunRanks) -> None:
    began = time.monotonic()
    result = run_ranks(3, IN_INIT)
    assert result.returncode == 5
    how = "exited with code 5"
    assert f"rank 2 on host localhost {how}" in result.stderr
    assert result.stdout.count(f"rank 2 on localhost {how}, and the ranks cannot meet without") == 2
    assert time.monotonic() - began < 10


NEVER_COMES = IN_INIT.replace("time.sleep(1)\n    os._exit(5)", "time.sleep(20)")


def test_a_rank_that_never_comes_is_named_with_its_host(run_ranks: RunRanks) -> None:
    result = run_ranks(3, NEVER_COMES, environment={**os.environ, "PERSEUS_START_TIMEOUT": "2"})
    assert result.stdout.count("s: rank 2 on localhost never came") == 2, result.stdout
    assert result.returncode == 1
