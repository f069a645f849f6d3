"""What the processes that a rank starts have of its engine: no descriptors, and no memory."""

from __future__ import annotations

import os

import pytest
from conftest import RunRanks, all_well

#: Prints what a process's descriptors are, one a line.
LIST = """
import os
for number in os.listdir("/proc/self/fd"):
    try: link = os.readlink("/proc/self/fd/" + number)
    except OSError: continue
    if int(number) > 2: print(link)
"""

#: A rank forks a child, and starts a program, once its engine has met the others.
STARTS_OTHERS = """
import collections, contextlib, io, mmap, os, socket, subprocess, sys, numpy
import perseus_core as core

def descriptors():
    with contextlib.redirect_stdout(io.StringIO()) as listed: exec(os.environ["LIST"])
    return collections.Counter(listed.getvalue().splitlines())

def descriptors_of_a_program():
    program = [sys.executable, "-S", "-c", os.environ["LIST"]]
    listed = subprocess.run(program, close_fds=False, check=True, capture_output=True, text=True)
    return collections.Counter(listed.stdout.splitlines())

def shared_memory():
    with open("/proc/self/maps") as maps: lines = [line.split(maxsplit=5) for line in maps]
    return collections.Counter(" ".join(line[5:]) for line in lines if line[1].endswith("s"))

def link_of(fd): return os.readlink(f"/proc/self/fd/{fd}")

own = mmap.mmap(-1, 4096)  # as of a tensor in shared memory
pmi, mpirun = socket.socketpair()  # as MPICH's launcher hands it down
os.set_inheritable(pmi.fileno(), True)
os.environ["PMI_FD"] = str(pmi.fileno())
news = link_of(os.environ["PERSEUS_NEWS_FD"])
handed_down = {news, link_of(pmi.fileno())}
before, before_in_program, memory_before = (
    descriptors(), descriptors_of_a_program(), shared_memory())
assert handed_down <= set(before_in_program), before_in_program

core.init()
for step in range(5): core.allreduce(numpy.ones(100000), name="step")
assert descriptors() - before, "the engine has none"
if (child := os.fork()) == 0:
    try:
        assert not descriptors() - before, descriptors() - before
        assert not handed_down & set(descriptors()), descriptors()
        assert not shared_memory() - memory_before, shared_memory()
        own[0] = 1
        assert core.rank() == int(os.environ["PERSEUS_RANK"])
        for call in (core.barrier, lambda: core.allreduce(numpy.ones(1))):
            try: call()
            except core.NotInitializedError: pass
            else: raise AssertionError("a child has an engine")
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert own[0] == 1
assert not descriptors_of_a_program() - before_in_program
assert not handed_down & set(descriptors_of_a_program())
for step in range(5): core.allreduce(numpy.ones(100000), name="step")
core.shutdown()
# What it starts now may be the rank, and be heard.
assert handed_down & set(descriptors_of_a_program()) == {news}
print("well", flush=True)
"""


@pytest.mark.parametrize(("ranks", "transport"), [(2, "shm"), (2, "tcp"), (4, "auto")])
def test_what_a_rank_starts_has_nothing_of_its_engine(
    run_ranks: RunRanks, ranks: int, transport: str
) -> None:
    environment = {**os.environ, "LIST": LIST, "PERSEUS_TRANSPORT": transport}
    all_well(run_ranks(ranks, STARTS_OTHERS, environment=environment), ranks)
