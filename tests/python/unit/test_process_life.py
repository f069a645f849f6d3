"""Signals, forks, threads, exits and many lives of an engine in one process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import RunRanks, all_well

#: Rank 0 waits for an operation that rank 1 never submits. WAIT is the call that waits.
WAITING = """
import os, signal, threading, time
import numpy
import perseus_core as core
core.init()
if core.rank() == 1:
    try:
        core.barrier()
    except core.HorovodInternalError as error:
        print("peer:", error, flush=True)
    raise SystemExit(0)
name = os.environ["WAIT"]
shutdown = core.shutdown
waits = {
    "core": lambda: core.allreduce(numpy.ones(3), name="this neither"),
    "allgather": lambda: core.allgather(numpy.ones(1), name="nor this"),
}
if name not in waits:
    import torch
    import perseus.torch.horovod as hvd
    hvd.init()
    shutdown = hvd.shutdown
    handle = hvd.allreduce_async(torch.ones(3), name="never")
    waits |= {"synchronize": lambda: hvd.synchronize(handle), "join": hvd.join}
if name == "step":
    model = torch.nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    model(torch.ones(1, 2)).sum().backward()
    waits["step"] = optimizer.step
core.allreduce_async(numpy.ones(3), name="outstanding")
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    waits[name]()
except KeyboardInterrupt:
    print(f"interrupted after {time.monotonic() - began:.2f} s", flush=True)
shutdown()
print("at its end", flush=True)
"""


@pytest.mark.parametrize("wait", ["synchronize", "step", "core", "allgather", "join"])
def test_ctrl_c_ends_a_wait_at_once(run_ranks: RunRanks, wait: str) -> None:
    result = run_ranks(2, WAITING, environment={**os.environ, "WAIT": wait})
    found = re.search(r"interrupted after ([\d.]+) s", result.stdout)
    assert found, result.stdout + result.stderr
    assert 0.4 < float(found[1]) < 1.5
    assert "at its end" in result.stdout
    assert "peer: " in result.stdout


OUTSTANDING = """
import sys
import numpy, torch
import perseus_core as core
import perseus.torch.horovod as hvd
hvd.init()
hvd.allreduce(torch.ones(3), name="first")

def submit():
    return [hvd.allreduce_async(torch.ones(100_000), name=f"h{i}") for i in range(10)]

if hvd.rank() == 0:
    handles = submit()
    handles += [core.allreduce_async(numpy.ones(10), name="mine alone", callback=print)]
    print("leaves", flush=True)
    sys.exit(0)  # without shutdown, and with all that under way
try:
    for handle in submit():
        assert (hvd.synchronize(handle) == 1).all()
    hvd.allreduce(torch.ones(3), name="later")
except hvd.HorovodInternalError as error:
    print("told:", error, flush=True)
"""


def test_an_exit_with_operations_outstanding(run_ranks: RunRanks) -> None:
    result = run_ranks(3, OUTSTANDING)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("leaves") == 1
    told = [line for line in result.stdout.splitlines() if "told:" in line]
    assert len(told) == 2
    assert all(re.search("rank 0 on .* has shut down or ended", line) for line in told), told
    assert "ERROR" not in result.stderr


#: One rank ends somewhere in the midst of 30 operations; each has an order of its own.
ENDS_ANYWHERE = """
import os, random, sys, time, numpy
import perseus_core as core
core.init()
rank, size = core.rank(), core.size()
chance = random.Random(int(os.environ["SEED"]))
kinds = [chance.choice(["allreduce", "allgather", "broadcast"]) for _ in range(30)]
counts = [chance.choice([1, 1000, 100_000, 400_000]) for _ in range(30)]
ends, after = chance.randrange(size), chance.randrange(1, 30)
pause = chance.choice([0, 0, .0005, .002])
order = random.Random(int(os.environ["SEED"]) * 100 + rank).sample(range(30), 30)

def submit(i):
    ones = numpy.ones(counts[i], numpy.float32)
    if kinds[i] == "allreduce": return core.allreduce_async(ones, core.ReduceOp.SUM, name=f"h{i}")
    if kinds[i] == "allgather": return core.allgather_async(ones[:1000], name=f"h{i}")
    return core.broadcast_async(ones, 0, name=f"h{i}")

try:
    handles = {i: submit(i) for i in order[: after if rank == ends else 30]}
    if rank == ends:
        time.sleep(pause)
        sys.exit(0)
    for i, handle in handles.items():
        result = handle.wait()
        if kinds[i] == "allreduce": assert (result == size).all()
        if kinds[i] == "allgather": assert result.size == min(1000, counts[i]) * size
    core.barrier()
    print("never told")
except core.AbortedError as error:
    print("told:" if "has shut down or ended" in str(error) else "wrong:", error)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("seed", range(6))
def test_an_exit_at_any_moment(run_ranks: RunRanks, seed: int, transport: str) -> None:
    ranks = 2 + seed % 3
    environment = {**os.environ, "SEED": str(seed), "PERSEUS_TRANSPORT": transport}
    result = run_ranks(ranks, ENDS_ANYWHERE, environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("told:") == ranks - 1, result.stdout
    assert "ERROR" not in result.stderr


FORKS = """
import multiprocessing, os, numpy, torch
import perseus.torch.horovod as hvd
import perseus_core as core
hvd.init()

def child(queue):
    # A data loader's worker: the engine is not there, and that is said at once.
    queue.put((core.is_initialized(), sum(range(1000))))
    try:
        core.allreduce(numpy.ones(1), name="in a child")
    except core.HorovodInternalError as error:
        queue.put(str(error))

handle = hvd.allreduce_async(torch.ones(1_000_000), name="before")
context = multiprocessing.get_context("fork")
queue = context.Queue()
children = [context.Process(target=child, args=(queue,)) for _ in range(3)]
for one in children: one.start()
answers = [queue.get(timeout=20) for _ in range(6)]
for one in children: one.join()
assert sorted(map(str, answers))[0].startswith("(False, 499500)"), answers
assert sum("init" in str(answer) for answer in answers) == 3, answers
assert (hvd.synchronize(handle) == 1).all()
data = torch.utils.data.TensorDataset(torch.arange(40.0))
loader = torch.utils.data.DataLoader(
    data, batch_size=4, num_workers=2, multiprocessing_context="fork"
)
total = sum(hvd.allreduce(batch.sum(), op=hvd.Sum, name="batch").item() for (batch,) in loader)
assert total == 780 * hvd.size(), total
pid = os.fork()
if pid == 0: os._exit(0)  # a child that ends tells nobody that the rank has
os.waitpid(pid, 0)
hvd.barrier()
print("well", flush=True)
"""


def test_forks_after_init(run_ranks: RunRanks) -> None:
    all_well(run_ranks(3, FORKS), 3)


#: The thread for callbacks is the parent's; a child that has an engine of its own needs its own.
CALLS_IN_A_CHILD = """
import os, threading, numpy
import perseus_core as core

def call():
    called = threading.Event()
    core.init()
    core.allreduce_async(numpy.ones(3), name="x", callback=lambda _: called.set())
    assert called.wait(20)

call()
pid = os.fork()
if pid == 0:
    call()
    core.shutdown()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print("well", flush=True)
"""


def test_callbacks_in_a_forked_child_that_has_called_init(run_ranks: RunRanks) -> None:
    all_well(run_ranks(1, CALLS_IN_A_CHILD), 1)


#: A data loader's worker may ask for its parent's rank, for example to choose its rows.
ASKS_FOR_ITS_PLACE = """
import os, perseus_core as core
core.init()
place = core.rank(), core.size(), core.local_rank(), core.cross_size(), core.is_homogeneous()
pid = os.fork()
if pid == 0:
    if os.fork() == 0: os._exit(0 if core.rank() == place[0] else 1)
    assert os.wait()[1] == 0
    assert not core.is_initialized()
    assert place == (core.rank(), core.size(), core.local_rank(), core.cross_size(),
                     core.is_homogeneous())
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
core.shutdown()
try: core.rank()
except ValueError: print("well", flush=True)
"""


def test_a_forked_child_knows_its_parents_place(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, ASKS_FOR_ITS_PLACE), 2)


#: Handles of every kind, one of them with a thread that waits for it, and a child that has them.
INHERITS = """
import os, threading, time, numpy, torch
import perseus.torch.horovod as hvd
import perseus_core as core
hvd.init()
complete = core.allreduce_async(numpy.ones(3), name="complete")
gathered = core.allgather_async(numpy.ones(3), name="gathered")
hvd.barrier()
while not (complete.poll() and gathered.poll()): time.sleep(0.001)
if hvd.rank() == 0:
    late = core.allreduce_async(numpy.ones(3), name="late")
    numbered = hvd.allreduce_async(torch.ones(3), name="numbered")
    awaited = core.allreduce_async(numpy.ones(3), name="awaited")
    waiter = threading.Thread(target=awaited.wait, daemon=True)
    waiter.start()
    while awaited._lock.acquire(blocking=False):
        awaited._lock.release()
        time.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        calls = {
            "late": [late.poll, late.wait, lambda: late.wait(5), late.wait],
            "complete": [complete.poll, complete.wait],
            "gathered": [gathered.wait],
            "numbered": [lambda: hvd.poll(numbered), lambda: hvd.synchronize(numbered)],
            "awaited": [awaited.poll, awaited.wait, lambda: awaited.wait(5)],
        }
        began, wrong = time.monotonic(), []
        for name, ways in calls.items():
            for way in ways:
                try:
                    wrong.append((name, way()))
                except core.NotInitializedError as error:
                    if f".{name}': it belongs to the process that this one" not in str(error):
                        wrong.append((name, error))
        taken = time.monotonic() - began
        del late, complete, gathered, awaited, calls, ways, way  # their ends are quiet
        print("child:", wrong, f"after {taken:.1f} s", flush=True)
        os._exit(0 if not wrong and taken < 2 else 1)
    began = time.monotonic()
    status = None
    while status is None and time.monotonic() - began < 10:
        ended, code = os.waitpid(pid, os.WNOHANG)
        status = code if ended else None
        time.sleep(0.01)
    if status is None: os.kill(pid, 9)
    assert status == 0, status
hvd.barrier()
if hvd.rank() != 0:
    late, awaited = (core.allreduce_async(numpy.ones(3), name=n) for n in ("late", "awaited"))
    numbered = hvd.allreduce_async(torch.ones(3), name="numbered")
assert (complete.wait() == 1).all() and gathered.wait().size == 3 * hvd.size()
assert (late.wait() == 1).all() and (awaited.wait() == 1).all()
assert (hvd.synchronize(numbered) == 1).all()
print("well", flush=True)
"""


def test_a_forked_child_is_told_of_its_parent_s_handles(run_ranks: RunRanks) -> None:
    result = run_ranks(2, INHERITS)
    all_well(result, 2)
    assert "Exception ignored" not in result.stderr


#: A daemon thread waits in Perseus, by WAIT, and comes back while the interpreter ends.
ENDS_AMONG_WAITERS = """
import atexit, os, threading, time, numpy
import perseus_core as core
from perseus_core import process
core.init()
atexit.unregister(process._leave)  # the wait is not to end before
launched = int(os.environ["PERSEUS_RANK"])
reached = threading.Event()

def wait_for_an_operation():
    reached.set()
    core.allreduce(numpy.ones(3), name=f"never {launched}")

def wait_for_a_callback():
    core.allreduce_async(numpy.ones(3), name="first", callback=lambda handle: reached.set())

def wait_for_ranks():
    core.shutdown()
    reached.set()
    if launched == 0: core.init()

wait = {"operation": wait_for_an_operation, "callback": wait_for_a_callback,
        "init": wait_for_ranks}[os.environ["WAIT"]]
threading.Thread(target=wait, daemon=True).start()
reached.wait()

class Lingers:
    # Gives up the GIL once Python has begun to end, for longer than a wait goes without it.
    def __del__(self, sleep=time.sleep, close=core._engine.close_callbacks):
        close()
        sleep(0.6)

lingers = Lingers()
print("well", flush=True)
"""


@pytest.mark.parametrize("wait", ["operation", "callback", "init"])
def test_an_exit_while_a_daemon_thread_waits(run_ranks: RunRanks, wait: str) -> None:
    result = run_ranks(2, ENDS_AMONG_WAITERS, environment={**os.environ, "WAIT": wait})
    all_well(result, 2)
    assert "terminate" not in result.stderr


THREADS = """
import threading, numpy
import perseus_core as core
core.init()
THREADS, OPERATIONS = 8, 200
failures = []

def work(thread):
    chance = numpy.random.default_rng(core.rank() * 100 + thread)
    try:
        for step in range(OPERATIONS // 20):
            order = chance.permutation(20)
            handles = {
                i: core.allreduce_async(numpy.full(1 + 97 * i, float(i)), core.ReduceOp.SUM,
                                        name=f"thread{thread}.{i}")
                for i in map(int, order)
            }
            for i, handle in handles.items():
                assert (handle.wait() == i * core.size()).all()
    except Exception as error:
        failures.append(repr(error))

threads = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
print("well", flush=True)
"""


def test_threads_that_submit_side_by_side(run_ranks: RunRanks) -> None:
    all_well(run_ranks(4, THREADS), 4)


LIVES = """
import os, time, numpy
import perseus_core as core

def descriptors(): return len(os.listdir("/proc/self/fd"))
def kilobytes():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1])
def threads(): return len(os.listdir("/proc/self/task"))

seen = []
for life in range(500):
    core.init()
    total = core.allreduce(numpy.full(10, float(core.rank())), core.ReduceOp.SUM, name="x")
    assert (total == core.size() * (core.size() - 1) / 2).all()
    core.shutdown()
    if life in (49, 499): seen.append((descriptors(), threads(), kilobytes()))
assert seen[0][:2] == seen[1][:2], seen
assert seen[1][2] < seen[0][2] + 8192, seen
print("well", seen, flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_five_hundred_lives(run_ranks: RunRanks, ranks: int) -> None:
    before = set(os.listdir("/dev/shm"))
    all_well(run_ranks(ranks, LIVES, timeout=300), ranks)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "perseus" in name]


def test_ctrl_c_while_ranks_meet() -> None:
    """Rank 1 never comes."""
    # Below those that the system gives out, one of which may be taken again by then.
    port = 20_000 + os.getpid() % 10_000
    environment = {
        **os.environ,
        **{"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }
    program = "import perseus_core; print('begins', flush=True); perseus_core.init()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "begins\n"
        time.sleep(1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 2
    assert "KeyboardInterrupt" in errors


RAISES = """
import os, threading, numpy, perseus_core
perseus_core.init()
if os.environ["HELD_UP"] == "1":
    threading.Thread(target=threading.Event().wait).start()  # no daemon: Python waits for it
for step in range(50):
    if perseus_core.rank() == 1 and step == 10:
        raise KeyError("a mistake of the script")
    try:
        perseus_core.allreduce(numpy.ones(10), name="g")
    except perseus_core.HorovodInternalError as error:
        print("told:", error, flush=True)
        os._exit(3)
"""


@pytest.mark.parametrize("held_up", ["0", "1"])
def test_an_exception_in_one_rank_is_told_to_all(run_ranks: RunRanks, held_up: str) -> None:
    result = run_ranks(3, RAISES, environment={**os.environ, "HELD_UP": held_up})
    told = [line.partition("told: ")[2] for line in result.stdout.splitlines() if "told" in line]
    pattern = r"allreduce of 'allreduce.g': rank 1 on \S+ has ended: KeyError: 'a mistake of .*'"
    assert len(told) == 2, result.stderr
    for line in told:
        assert re.fullmatch(pattern, line), line
