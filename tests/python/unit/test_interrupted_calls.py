"""Tests that an error from a signal handler, at any moment of a call, loses and spoils nothing."""

from __future__ import annotations

from conftest import RunRanks, all_well

#: `raising_after(name, error)` raises the error as soon as the C function of that name has
#: returned, where a signal's handler may.
RAISING = """
import os, signal, sys, threading, time
import numpy
import perseus_core as core

class Stop(Exception):
    pass

def raising_after(name, error):
    def profile(frame, event, argument):
        if event == "c_return" and argument.__name__ == name:
            sys.setprofile(None)
            raise error
    sys.setprofile(profile)

core.init()
LENGTH = 1 << 20
"""

SUBMISSION = (
    RAISING
    + """
import torch
import perseus.torch.horovod as hvd
hvd.init()
SUBMIT = {
    "core": lambda: core.allreduce_async(numpy.full(LENGTH, 2.0), core.ReduceOp.SUM, name="x"),
    "core group": lambda: core.grouped_allreduce_async(
        [numpy.full(LENGTH, 2.0)], core.ReduceOp.SUM, name="x"
    ),
    "torch": lambda: hvd.allreduce_async(torch.full((LENGTH,), 2.0), op=hvd.Sum, name="x"),
    "torch in place": lambda: hvd.allreduce_async_(
        torch.full((LENGTH,), 2.0), op=hvd.Sum, name="x"
    ),
    "torch group": lambda: hvd.grouped_allreduce_async(
        [torch.full((LENGTH,), 2.0)], op=hvd.Sum, name="x"
    ),
}
for how, submit in SUBMIT.items():
    if core.rank() == 0:
        function = "submit" if how.endswith("group") else "submit_allreduce"
        raising_after(function, KeyboardInterrupt)
        try:
            submit()
            raise SystemExit(f"{how}: not interrupted")
        except KeyboardInterrupt:
            pass
        mine = [numpy.full(LENGTH, 7.0, kind) for kind in ("f4", "f8") for _ in range(4)]
        core.barrier()
        core.barrier()
        assert all((array == 7).all() for array in mine), how
        del mine
    else:
        core.barrier()
        result = submit()
        result = result.wait() if how.startswith("core") else hvd.synchronize(result)
        result = result[0] if how.endswith("group") else result
        assert (result == 4).all(), (how, result)
        core.barrier()
print("well", flush=True)
"""
)


def test_an_interrupted_submission_keeps_its_memory(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, SUBMISSION), 2)


WAIT = (
    RAISING
    + """
import torch
import perseus.torch.horovod as hvd
hvd.init()
for name in ("a", "b"):
    handle = core.allreduce_async(numpy.ones(3), core.ReduceOp.SUM, name=name)
    if name == "b":
        core.allreduce_async(numpy.ones(3), name="later").wait()  # so that b is complete
    raising_after("wait", Stop)
    try:
        handle.wait()
        raise SystemExit("not interrupted")
    except Stop:
        assert handle.wait().tolist() == [2, 2, 2]
handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
raising_after("wait", Stop)
try:
    hvd.synchronize(handle)
    raise SystemExit("not interrupted")
except Stop:
    assert hvd.synchronize(handle).tolist() == [2, 2, 2]
print("well", flush=True)
"""
)


def test_a_handler_s_exception_is_not_the_operation_s(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, WAIT), 2)


SETS = (
    RAISING
    + """
def raise_stop(*_):
    raise Stop
signal.signal(signal.SIGALRM, raise_stop)

if core.rank() == 0:
    for call, argument, other in (
        (core.add_process_set, [0], [1]),
        (core.remove_process_set, 1, 2),
    ):
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            call(argument)
            raise SystemExit("not interrupted")
        except Stop:
            pass
        try:
            call(other)
            raise SystemExit("not refused")
        except ValueError as error:
            assert "was interrupted, is still under way" in str(error), error
        assert call(argument) in (1, None)  # waits for the one that was interrupted
else:
    time.sleep(1)
    assert core.add_process_set([0]) == 1
    time.sleep(1)
    core.remove_process_set(1)
assert core.allreduce(numpy.ones(1), core.ReduceOp.SUM, name="after")[0] == 2
assert sorted(core.process_sets()) == [0]
print("well", flush=True)
"""
)


def test_an_interrupted_change_of_process_sets_can_be_waited_for(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, SETS), 2)


SET_OF_THE_DEAD = (
    RAISING
    + """
def raise_stop(*_):
    raise Stop
signal.signal(signal.SIGALRM, raise_stop)
if core.rank() == 1:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    core.add_process_set([0])
except Stop:
    pass
try:
    core.add_process_set([0])
except core.HorovodInternalError as error:
    print("error:", error, flush=True)
os._exit(1)
"""
)


def test_an_interrupted_change_of_process_sets_ends_with_a_rank(run_ranks: RunRanks) -> None:
    result = run_ranks(2, SET_OF_THE_DEAD)
    assert "error: lost rank 1 on " in result.stdout, result.stdout + result.stderr


WRONG_SET = (
    RAISING
    + """
added = []
first = threading.Thread(target=lambda: added.append(core.add_process_set([0])))
if core.rank() == 1:
    time.sleep(1)
first.start()
if core.rank() == 0:
    time.sleep(0.5)  # so that it is under way
else:
    first.join()
try:
    core.add_process_set([99] if core.rank() == 0 else [0, 1])
    raise SystemExit("not refused")
except (ValueError, core.HorovodInternalError) as error:
    assert "must be different numbers from 0 to 1" in str(error), error
first.join()
assert added == [1], added
assert core.join() in (0, 1)
print("well", flush=True)
"""
)


def test_a_wrong_process_set_beside_another_holds_nobody_up(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, WRONG_SET), 2)
