"""Ranks that are killed and come back: how long training stands still, beside the peers.

python benchmarks/elastic.py [--kills 10] [--drains 10] [--ranks 4]
                             [--contenders perseus torchft ...]

A rank is killed again and again (kill -9), and another takes its place. Two times count:
  recovery  from the kill until each survivor has done its next step
  pause     by how much a step of the survivors takes longer when the new rank joins

Figures for docs/elastic.md are taken with --kills 50, which takes over an hour with all contenders,
and ten minutes with --contenders perseus.

The contenders take turns of five kills: Perseus; Horovod's elastic jobs over Gloo, and torchft,
both of which `make peers` installs; and torchrun with Gloo, DDP and a checkpoint after each step,
where all ranks start again after a kill, so that there is no pause besides.

Perseus alone can drain a rank: in jobs of their own, SIGTERM has one leave at the end of its step.
Two figures count:
  pause       by how much a step of the others takes longer when it leaves
  steps lost  steps that the others have done again, or not at all
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from contest import ending
from contest.arguments import Different, at_least
from contest.elastic_jobs import (
    CALM_SECONDS,
    CONTENDERS,
    Contender,
    Job,
    LostJobError,
    perseus,
    running,
)
from contest.progress import progress

KILLS_IN_A_TURN = 5


def one_kill(job: Job, ranks: int) -> tuple[float, float]:
    """Returns the seconds of a recovery and of the pause after it."""
    began = max(step.moment for step in job.wait_for(ranks, 0, ranks).values())
    time.sleep(CALM_SECONDS)
    before = job.steps()
    killed = job.kill_one()
    survivors = job.wait_for(ranks - 1, killed, ranks - 1)
    recovery = max(step.moment for step in survivors.values()) - killed
    job.wait_for(ranks, killed, ranks)
    pauses = []
    for pid, steps in job.steps().items():
        if pid in survivors:
            later = (pair for pair in itertools.pairwise(steps) if pair[0].moment > killed)
            pauses += [
                b.moment - a.moment for a, b in later if (a.size, b.size) == (ranks - 1, ranks)
            ]
    usual = [
        b.moment - a.moment
        for steps in before.values()
        for a, b in itertools.pairwise(steps)
        if a.moment > began
    ]
    return recovery, max(0.0, max(pauses) - statistics.median(usual))


def one_drain(job: Job, ranks: int) -> tuple[float, int]:
    """Returns the seconds of the others' pause, and how many steps are lost."""
    began = max(step.moment for step in job.wait_for(ranks, 0, ranks).values())
    time.sleep(CALM_SECONDS)
    asked = time.monotonic()
    leaves = random.choice(list(job.steps()))
    os.kill(leaves, signal.SIGTERM)
    job.wait_for(ranks - 1, asked, ranks - 1)
    time.sleep(CALM_SECONDS)
    job.wait_for_end_of(leaves)
    pauses, lost = [], 0
    for steps in job.steps().values():
        pairs = list(itertools.pairwise(steps))
        usual = [b.moment - a.moment for a, b in pairs if began < a.moment and b.moment < asked]
        pause = sum(b.moment - a.moment for a, b in pairs if (a.size, b.size) == (ranks, ranks - 1))
        pauses.append(pause - statistics.median(usual))
        lost = max(lost, sum(b.number != a.number + 1 for a, b in pairs))
    return max(0.0, *pauses), lost


def one_restart(job: Job, ranks: int) -> float:
    """Returns the seconds of a recovery."""
    job.wait_for(ranks, 0, ranks)
    time.sleep(CALM_SECONDS)
    killed = job.kill_one()
    return max(step.moment for step in job.wait_for(ranks, killed + 0.2, ranks).values()) - killed


def turn(
    contender: Contender, folder: Path, ranks: int, kills: int
) -> tuple[list[float], list[float]]:
    """Returns the recoveries and pauses of a job, fewer than kills if it does not recover."""
    recoveries: list[float] = []
    pauses: list[float] = []
    with running(contender.make(folder, ranks)) as job:
        try:
            for _ in range(kills):
                if contender.restarts:
                    recoveries.append(one_restart(job, ranks))
                else:
                    recovery, pause = one_kill(job, ranks)
                    recoveries.append(recovery)
                    pauses.append(pause)
        except LostJobError as error:
            print(f"\n{error}", file=sys.stderr)
    return recoveries, pauses


def measure_drains(folder: Path, ranks: int, drains: int) -> None:
    pauses, lost = [], 0
    for number in progress(range(drains), "drains"):
        with running(perseus(folder / f"drain{number}", ranks)) as job:
            pause, lost_now = one_drain(job, ranks)
        pauses.append(pause)
        lost += lost_now
    print(f"a rank of {ranks} is drained, {drains} times; seconds, median (least to most)")
    print(f"{'perseus':10} pause {described(pauses)}  {lost} steps lost")


def described(seconds: list[float]) -> str:
    if not seconds:
        return f"{'-':>24}"
    return f"{statistics.median(seconds):8.3f}  ({min(seconds):.3f} to {max(seconds):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=at_least(1), default=10)
    parser.add_argument("--drains", type=at_least(0), default=10)
    parser.add_argument("--ranks", type=at_least(2), default=4)
    parser.add_argument(
        "--contenders",
        nargs="+",
        action=Different,
        choices=list(CONTENDERS),
        default=list(CONTENDERS),
    )
    args = parser.parse_args()
    names = []
    for name in args.contenders:
        if why := CONTENDERS[name].unavailable():
            print(f"{name} is left out: it {why}")
        else:
            names.append(name)
    recoveries: dict[str, list[float]] = {name: [] for name in names}
    lost = dict.fromkeys(names, 0)
    pauses: dict[str, list[float]] = {name: [] for name in names}
    turns = [(first, name) for first in range(0, args.kills, KILLS_IN_A_TURN) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        for first, name in progress(turns, "turns"):
            few = min(KILLS_IN_A_TURN, args.kills - first)
            taken = turn(CONTENDERS[name], Path(folder) / f"{name}{first}", args.ranks, few)
            recoveries[name] += taken[0]
            lost[name] += len(taken[0]) < few
            pauses[name] += taken[1]
    print(f"{args.ranks} ranks, {args.kills} kills; seconds, median (least to most)")
    for name in names:
        print(
            f"{name:10} recovery {described(recoveries[name])}  pause {described(pauses[name])}"
            + (f"  {lost[name]} jobs did not recover" if lost[name] else "")
        )
    if "perseus" in names:
        ours = statistics.median(recoveries["perseus"])
        for name in [name for name in names[1:] if recoveries[name]]:
            print(f"recovery, {name} / perseus: {statistics.median(recoveries[name]) / ours:.1f}")
        if args.drains:
            with tempfile.TemporaryDirectory() as folder:
                measure_drains(Path(folder), args.ranks, args.drains)


if __name__ == "__main__":
    with ending.by_exception():
        main()
