"""CPU time that an idle engine uses, on each of several ranks.

python benchmarks/idle.py [--ranks 4] [--seconds 20]

Each rank initialises, runs one allreduce, and sleeps; the figure is the process's CPU time (user
and system, all threads) during the sleep.
"""

import argparse
import time

from contest import ending
from contest.arguments import at_least, positive
from contest.ranks import run


def idle(seconds: float) -> float:
    """Returns CPU seconds of this process during a sleep of `seconds`."""
    import numpy as np

    import perseus_core as core

    core.init()
    core.allreduce(np.ones(1000, np.float32))
    before = time.process_time()
    time.sleep(seconds)
    used = time.process_time() - before
    core.barrier()
    core.shutdown()
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(1), default=4)
    parser.add_argument("--seconds", type=positive, default=20.0)
    args = parser.parse_args()
    used = run(idle, args=(args.seconds,), num_proc=args.ranks)
    for rank, seconds in enumerate(used):
        print(f"rank {rank}: {seconds * 1e3:.2f} ms of CPU in {args.seconds:g} s")


if __name__ == "__main__":
    with ending.by_exception():
        main()
