"""The training job that campaign.py injects faults into: one rank.

python job.py --steps 40 --seed 7 [--torch] [--survive]

Each step computes for a moment, reduces gradients of several sizes, and checks every element of
every result against what all ranks have given, which each knows by seed, rank and step. A SIGINT
interrupts a wait, which begins anew. At the end ranks join, one after the other.

Says as lines of JSON what campaign.py waits for: "ready" with the process's number after the first
step, then "done", or "error" with the text of what was raised. Exit status 0, or 3 after such an
error; a wrong result is 4. With --survive those that are left meet anew and go on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import perseus_core

#: Elements of each gradient: merged, whole, and in shards.
SIZES = (1, 17, 1000, 40_000, 300_000, 700_000)
SUM, MIN = perseus_core.ReduceOp.SUM, perseus_core.ReduceOp.MIN
ERROR, WRONG = 3, 4


#: The faults that this rank inflicts on itself, by name; see suffer.
LOT = json.loads(os.environ.get("CHAOS_LOT", "{}"))


def suffer() -> None:
    """Called before init: inflicts on this rank what LOT says."""
    if LOT.get("rank") != int(os.environ["PERSEUS_RANK"]):
        LOT.clear()
    time.sleep(LOT.get("delay", 0))
    if "short_at" not in LOT:
        fall_short()


def fall_short() -> None:
    if "descriptors" in LOT:
        _limit(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) + LOT["descriptors"])
    if "megabytes" in LOT:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + (LOT["megabytes"] << 20))


def _limit(what: int, soft: int) -> None:
    resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))


def say(what: str, **more: object) -> None:
    print(json.dumps({"what": what, "rank": os.environ.get("PERSEUS_RANK"), **more}), flush=True)


is_waiting = False


def interrupt(*_: object) -> None:
    global is_waiting
    if is_waiting:
        is_waiting = False
        raise KeyboardInterrupt


def wait(handle: perseus_core.Handle[np.ndarray]) -> np.ndarray:
    global is_waiting
    while True:
        try:
            is_waiting = True
            try:
                return handle.wait()
            finally:
                is_waiting = False
        except KeyboardInterrupt:
            pass


#: The launcher's numbers of the remaining ranks, which determine what they compute.
launched: list[int] = []
#: The process set of every other rank.
half = 0


def meet() -> None:
    global half
    say("meets")
    perseus_core.init()
    mine = np.array([int(os.environ["PERSEUS_RANK"])])
    launched[:] = map(int, perseus_core.allgather(mine, name="launched"))
    members = range(0, perseus_core.size(), 2)
    half = perseus_core.add_process_set(members) if perseus_core.size() > 1 else 0


def own() -> int:
    return launched[perseus_core.rank()]


def gradient(seed: int, rank: int, step: int, index: int) -> np.ndarray:
    """Whole numbers, whose sums float32 holds exactly."""
    start = (seed * 31 + rank * 7 + step * 3 + index) % 1000
    return ((np.arange(SIZES[index], dtype=np.int64) + start) % 1000).astype(np.float32)


def summed(seed: int, step: int, index: int, ranks: Sequence[int] = launched) -> np.ndarray:
    return sum(gradient(seed, rank, step, index) for rank in ranks)


def check(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    if not np.array_equal(found, expected):
        wrong = np.flatnonzero(found != expected)
        say("wrong", tensor=what, elements=int(wrong.size), first=int(wrong[0]))
        sys.stdout.flush()
        os._exit(WRONG)


def take_step(seed: int, step: int) -> None:
    end_at(step)
    rank, size = own(), perseus_core.size()
    order = np.random.default_rng(seed * 1000 + rank * 100 + step).permutation(len(SIZES))
    handles = {
        index: perseus_core.allreduce_async(
            gradient(seed, rank, step, index),
            SUM,
            name=f"gradient.{index}",
            priority=-index,
        )
        for index in map(int, order)
    }
    for index, handle in handles.items():
        check(wait(handle), summed(seed, step, index), f"gradient.{index} of step {step}")
    if step % 5 == 0:
        rows = wait(perseus_core.allgather_async(np.full((rank + 1, 3), step), name="rows"))
        expected = np.full((sum(launched) + size, 3), step)
        check(rows, expected, f"rows of step {step}")
        root = step % size
        mine = gradient(seed, rank, step, 4)
        sent = wait(perseus_core.broadcast_async(mine, root, name="parameters"))
        check(sent, gradient(seed, launched[root], step, 4), f"parameters of step {step}")
        if rank in launched[::2]:
            handle = perseus_core.allreduce_async(mine, SUM, name="half", process_set=half)
            check(wait(handle), summed(seed, step, 4, launched[::2]), f"half of step {step}")


def end_at(step: int) -> None:
    if LOT.get("short_at") == step:
        fall_short()
    if LOT.get("exit_at") == step:
        os._exit(9)
    if LOT.get("raise_at") == step:
        raise ZeroDivisionError("the script's own mistake")


def train(steps: int, seed: int, pause: float, survives: bool) -> None:
    attempts = 5 if survives else 1
    step = begin(0, attempts)
    while step < steps:
        try:
            take_step(seed, step)
        except perseus_core.HorovodInternalError as error:
            if not survives:
                raise
            leave(step, error)
            step = begin(step, attempts)
            continue
        if step == 0:
            say("ready", pid=os.getpid(), size=perseus_core.size())
        step += 1
        time.sleep(pause)
    join(seed)
    perseus_core.shutdown()


def join(seed: int) -> None:
    """Each rank makes as many steps more as its number says; the others have joined by then."""
    for step in range(own()):
        total = perseus_core.allreduce(gradient(seed, own(), step, 2), SUM, name="late")
        late = [rank for rank in launched if rank > step]
        check(total, summed(seed, step, 2, late), f"late of step {step}")
    perseus_core.join()


def begin(step: int, attempts: int) -> int:
    """Meets the remaining ranks; returns the next step, since some may have completed one more."""
    while True:
        try:
            meet()
            return int(perseus_core.allreduce(np.array(step), MIN, name="step"))
        except perseus_core.HorovodInternalError as error:
            attempts -= 1
            if attempts == 0:
                raise
            leave(step, error)


def leave(step: int, error: Exception) -> None:
    say("anew", step=step, text=str(error))
    perseus_core.shutdown()


def train_by_torch(steps: int, seed: int, pause: float) -> None:
    """The same through DistributedOptimizer: a linear model, so that each gradient is its input."""
    import torch

    import perseus.torch.horovod as hvd

    torch.set_num_threads(1)
    meet()
    params = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    named = [(f"p.{i}", param) for i, param in enumerate(params)]
    sgd = torch.optim.SGD(params, lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=named, op=hvd.Sum)
    for step in range(steps):
        end_at(step)
        optimizer.zero_grad()
        inputs = [
            torch.from_numpy(gradient(seed, hvd.rank(), step, index)) for index in range(len(SIZES))
        ]
        sum((param * factor).sum() for param, factor in zip(params, inputs, strict=True)).backward()
        optimizer.step()
        for index, param in enumerate(params):
            check(param.grad.numpy(), summed(seed, step, index), f"p.{index} of step {step}")
        if step == 0:
            say("ready", pid=os.getpid(), size=hvd.size())
        time.sleep(pause)
    hvd.barrier()
    hvd.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds of computing a step")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--survive", action="store_true", help="go on without ranks that are lost")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, interrupt)
    say("started", pid=os.getpid())
    suffer()
    began = time.monotonic()
    try:
        if args.torch:
            train_by_torch(args.steps, args.seed, args.pause)
        else:
            train(args.steps, args.seed, args.pause, args.survive)
    except (perseus_core.HorovodInternalError, MemoryError, OSError) as error:
        kind = type(error).__name__
        say("error", kind=kind, text=str(error), seconds=time.monotonic() - began)
        sys.exit(ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python takes its handlers away at its end
    say("done")


if __name__ == "__main__":
    main()
