"""Processes that a rank starts inherit its environment; they must not take its place in the job."""

from __future__ import annotations

import os
import re
import sys

import pytest
from conftest import RunRanks, all_well

CHILD = """
import os, sys, time, numpy
import perseus_core as core
began = time.monotonic()
try:
    core.init()
    total = core.allreduce(numpy.full(1, 100.0), core.ReduceOp.SUM, name="x")
    print("child: world of", core.size(), "as", core.rank(), "sum", total, flush=True)
    core.shutdown()
except ValueError as error:
    taken = time.monotonic() - began
    print("child:", error if taken < 5 else f"only after {taken} s", flush=True)
"""

#: Rank 1 starts a child, HOW. Then all sum, leave, meet again and sum again.
PARENT = """
import multiprocessing, os, subprocess, sys, threading, numpy
import perseus_core as core

def run_child():
    exec(os.environ["CHILD"])

def start(how):
    if how == "forks":
        if (pid := os.fork()) == 0:
            run_child()
            os._exit(0)
        os.waitpid(pid, 0)
    elif how == "forks twice":
        if (pid := os.fork()) == 0:
            start("forks")
            os._exit(0)
        os.waitpid(pid, 0)
    elif how in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(how).Process(target=run_child)
        child.start()
        child.join()
    else:
        program = [sys.executable, "-c", os.environ["CHILD"]]
        environment = {"inherits": None, "copies": {**os.environ, "MORE": "1"}}[how]
        subprocess.run(program, env=environment, check=True)

if __name__ == "__main__":
    for _ in range(2):
        core.init()
        if core.rank() == 1: start(os.environ["HOW"])
        total = core.allreduce(numpy.full(1, core.rank() + 1.0), core.ReduceOp.SUM, name="x")
        assert total == core.size() * (core.size() + 1) / 2, total
        core.shutdown()
    print("well", flush=True)
"""

WAYS = ["forks", "forks twice", "fork", "spawn", "forkserver", "inherits", "copies"]


def told(output: str) -> list[str]:
    return re.findall(r"child: (.*)", output)


def is_refused(text: str, rank: int = 1) -> bool:
    return f"which is rank {rank} of the job; it must not call init" in text


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("how", WAYS)
def test_a_child_cannot_take_its_parents_place(run_ranks: RunRanks, how: str, ranks: int) -> None:
    result = run_ranks(ranks, PARENT, environment={**os.environ, "CHILD": CHILD, "HOW": how})
    all_well(result, ranks)
    children = told(result.stdout)
    assert len(children) == 2, result.stdout + result.stderr
    assert all(is_refused(text) for text in children), children


def test_a_child_with_malformed_settings_disturbs_nobody(run_ranks: RunRanks) -> None:
    child = "import os; os.environ['PERSEUS_ALLREDUCE_STREAMS'] = '99'\n" + CHILD
    result = run_ranks(2, PARENT, environment={**os.environ, "CHILD": child, "HOW": "forks"})
    all_well(result, 2)
    assert all(is_refused(text) for text in told(result.stdout)), result.stdout


@pytest.mark.parametrize("how", ["forks", "copies"])
def test_a_child_may_work_alone(run_ranks: RunRanks, how: str) -> None:
    alone = "import os; os.environ.update(PERSEUS_RANK='0', PERSEUS_SIZE='1')\n" + CHILD
    result = run_ranks(3, PARENT, environment={**os.environ, "CHILD": alone, "HOW": how})
    all_well(result, 3)
    assert told(result.stdout) == ["world of 1 as 0 sum [100.]"] * 2


#: Rank 1 forks a child before it calls init itself, as a pool of processes may be made early.
FORKS_BEFORE = """
import os, numpy
import perseus_core as core
read, write = os.pipe()
pid = os.fork() if os.environ["PERSEUS_RANK"] == "1" else None
if pid == 0:
    os.close(write)
    os.read(read, 1)
    exec(os.environ["CHILD"])
    os._exit(0)
core.init()
if pid is not None:
    os.write(write, b"1")
    os.waitpid(pid, 0)
core.barrier()
core.shutdown()
core.init()  # all meet again
core.barrier()
print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_child_that_is_forked_before_init_cannot_take_the_rank_afterwards(
    run_ranks: RunRanks, ranks: int
) -> None:
    result = run_ranks(ranks, FORKS_BEFORE, environment={**os.environ, "CHILD": CHILD})
    all_well(result, ranks)
    (child,) = told(result.stdout)
    assert is_refused(child), child


#: A thread is in init, waiting for the other ranks, when the process forks.
FORKS_DURING_INIT = """
import os, threading, time, numpy
import perseus_core as core
if os.environ["PERSEUS_RANK"] == "1":
    joining = threading.Thread(target=core.init)
    joining.start()
    while core._engine.environment_variable("PERSEUS_RANK_HELD_BY") is None: time.sleep(0.001)
    if (pid := os.fork()) == 0:
        exec(os.environ["CHILD"])
        os._exit(0)
    os.waitpid(pid, 0)
    os.mkfifo(os.environ["FIFO"])
    open(os.environ["FIFO"], "w").close()
    joining.join()
else:
    while not os.path.exists(os.environ["FIFO"]): time.sleep(0.01)
    open(os.environ["FIFO"]).close()
    core.init()
core.barrier()
print("well", flush=True)
"""


def test_a_child_that_is_forked_during_init_neither_hangs_nor_takes_the_rank(
    run_ranks: RunRanks, tmp_path: os.PathLike[str]
) -> None:
    fifo = os.path.join(tmp_path, "fifo")
    environment = {**os.environ, "CHILD": CHILD, "FIFO": fifo}
    result = run_ranks(2, FORKS_DURING_INIT, environment=environment)
    all_well(result, 2)
    (child,) = told(result.stdout)
    assert is_refused(child), child


#: Each rank is a program that has not called init, or has left the job, and starts another one.
HANDS_OVER = """
import os, subprocess, sys
import perseus_core as core
if os.environ["HOW"] == "after shutdown":
    core.init()
    core.shutdown()
if os.environ["HOW"] == "by a fork":
    if (pid := os.fork()) == 0:
        exec(os.environ["CHILD"])
        os._exit(0)
    os.waitpid(pid, 0)
else:
    program = [sys.executable, "-c", os.environ["CHILD"]]
    subprocess.run(program, env={**os.environ}, check=True)
print("well", flush=True)
"""


@pytest.mark.parametrize("how", ["without init", "by a fork", "after shutdown"])
def test_a_child_may_be_the_rank_if_its_parent_is_not(run_ranks: RunRanks, how: str) -> None:
    environment = {**os.environ, "CHILD": CHILD, "HOW": how}
    result = run_ranks(3, HANDS_OVER, environment=environment)
    all_well(result, 3)
    assert sorted(told(result.stdout)) == [f"world of 3 as {rank} sum [300.]" for rank in range(3)]


def test_a_shell_may_start_the_rank(run_ranks: RunRanks) -> None:
    shell = """import os, sys; os.system(sys.executable + ' -c "$CHILD"'); print("well")"""
    result = run_ranks(2, shell, environment={**os.environ, "CHILD": CHILD})
    all_well(result, 2)
    assert sorted(told(result.stdout)) == [f"world of 2 as {rank} sum [200.]" for rank in range(2)]


#: A rank starts a job of its own.
STARTS_A_JOB = f"""
import os, subprocess, sys
import perseus_core as core
core.init()
if core.rank() == 1:
    launcher = [{sys.executable!r}, "-m", "perseus.run", "-np", "2"]
    subprocess.run([*launcher, sys.executable, "-c", os.environ["CHILD"]], check=True)
core.barrier()
print("well", flush=True)
"""


def test_a_rank_may_start_a_job(run_ranks: RunRanks) -> None:
    result = run_ranks(2, STARTS_A_JOB, environment={**os.environ, "CHILD": CHILD})
    all_well(result, 2)
    assert sorted(told(result.stdout)) == [f"world of 2 as {rank} sum [200.]" for rank in range(2)]


#: Rank 1 forks a child that does what it can with what they share, so as to be the rank later.
GRABS = """
import ctypes, fcntl, os, struct, time, numpy
import perseus_core as core

LOCK = "hhxxxxqqi4x"

def grab(tell):
    for line in open("/proc/self/maps"):
        if "rw-s" in line:
            begin = int(line.split("-")[0], 16)
            held = struct.unpack("<Q", ctypes.string_at(begin, 8))[0] & 0xffffffff
            ctypes.memmove(begin, struct.pack("<Q", os.getpid() << 32 | held), 8)
    waits_for = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            asked = struct.pack(LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, begin, length, _ = struct.unpack(LOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK: waits_for.append((fd, begin))
        except OSError: pass
    os.write(tell, b"ready")
    for fd, begin in waits_for:
        fcntl.fcntl(fd, fcntl.F_SETLKW, struct.pack(LOCK, fcntl.F_WRLCK, os.SEEK_SET, begin, 1, 0))
    os.write(tell, b"done")
    time.sleep(1000)

core.init()
if core.rank() == 1:
    read, write = os.pipe()
    if (child := os.fork()) == 0: grab(write)
    assert os.read(read, 5) == b"ready"
for meeting in range(2):
    core.barrier()
    is_first = core.rank() == 1 and meeting == 0
    core.shutdown()
    if is_first: assert os.read(read, 4) == b"done"
    core.init()
core.barrier()
print("well", flush=True)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_child_cannot_keep_its_parent_from_meeting_the_others_again(
    run_ranks: RunRanks, ranks: int
) -> None:
    all_well(run_ranks(ranks, GRABS), ranks)
