"""The costs of elastic training: a step while nothing happens, a large state, many ranks, a commit.

python benchmarks/elastic_costs.py [--only steps state worlds commit]

steps   The same training in jobs that take turns: one that is not elastic and keeps no state, and
        elastic ones which look for changes after each step and commit after every hundredth, or
        after each.
state   A rank joins one other, which has 1 GB of parameters: the seconds from the moment at which
        the new one is about to train until it has the state, and by how much a step of the other
        takes longer.
worlds  One of 64 ranks is killed, on this machine alone: the seconds until all others have done a
        step in their new world.
commit  A commit of 1 GB of parameters with SGD, and of ResNet-50 with momentum, with copies and
        without: TorchState(copies=False).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from contest import ending
from contest.arguments import Different, at_least
from contest.elastic_jobs import CALM_SECONDS, WORKS, Job, perseus, perseus_job, running
from contest.progress import progress

SECONDS_OF_STEPS = 4.0
#: So many are timed before a rank joins.
STEPS_BEFORE = 6
#: A job that times commits takes no longer.
SECONDS_OF_COMMITS = 300.0


def intervals(job: Job, since: float) -> list[float]:
    """Returns the seconds between steps of all ranks."""
    return [
        b.moment - a.moment
        for steps in job.steps().values()
        for a, b in itertools.pairwise(steps)
        if a.moment > since
    ]


def measure_steps(folder: Path, rounds: int) -> None:
    ways: dict[str, Callable[[Path], Job]] = {
        "not elastic": lambda at: perseus_job(at, 2, [], "--commit-every", "0"),
        "elastic, a commit in 100": lambda at: perseus(at, 2, "--commit-every", "100"),
        "elastic, all commit": lambda at: perseus(at, 2, "--commit-every", "1"),
    }
    medians: dict[str, list[float]] = {way: [] for way in ways}
    turns = [(number, way) for number in range(rounds) for way in ways]
    for number, way in progress(turns, "steps"):
        with running(ways[way](folder / f"{way}{number}")) as job:
            began = max(step.moment for step in job.wait_for(2, 0, 2).values())
            time.sleep(SECONDS_OF_STEPS)
            medians[way].append(statistics.median(intervals(job, began + CALM_SECONDS)))
    print("a step of 4 MB of parameters at 2 ranks, milliseconds, median of the turns' medians")
    base = medians["not elastic"]
    for way, found in medians.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        print(f"  {way:26} {statistics.median(found) * 1e3:7.2f}   {ratio:.3f}")


def measure_state(folder: Path, rounds: int) -> None:
    took, pauses = [], []
    for number in progress(range(rounds), "state"):
        with running(perseus(folder / f"state{number}", 2, "--mb", "1000")) as job:
            while len(intervals(job, 0)) < STEPS_BEFORE:
                job.wait_for(2, 0, 2)
                time.sleep(CALM_SECONDS)
            usual = statistics.median(intervals(job, 0))
            killed = job.kill_one()
            job.wait_for(2, killed, 2)
            (old,) = (steps for steps in job.steps().values() if steps[0].moment < killed)
            pauses += [
                b.moment - a.moment - usual
                for a, b in itertools.pairwise(old)
                if (a.size, b.size) == (1, 2) and a.moment > killed
            ]
            (new,) = (pid for pid, steps in job.steps().items() if steps[0].moment > killed)
            took.append(float((job.folder / f"{new}.joined").read_text().split()[0]))
    print("1 GB of state to a rank that joins, seconds, median (least to most)")
    print(f"  until it has the state      {described(took)}")
    print(f"  a step of the other longer  {described(pauses)}")


def measure_worlds(folder: Path, rounds: int, ranks: int = 64) -> None:
    # Without a cooldown, so that no rank is replaced.
    flags = ["--min-np", "1", "--max-np", str(ranks), "-H", f"localhost:{ranks}"]
    job = perseus_job(folder / "worlds", ranks, [*flags, "--blacklist-by", "slot"])
    job.command = [*job.command[:-2], str(WORKS / "elastic_adding.py")]
    took = []
    with running(job):
        for lost in progress(range(rounds), "worlds"):
            size = ranks - lost
            job.wait_for(size, 0, size)
            time.sleep(CALM_SECONDS)
            killed = job.kill_one()
            survivors = job.wait_for(size - 1, killed, size - 1)
            took.append(max(step.moment for step in survivors.values()) - killed)
    print(f"one of {ranks} ranks is killed, seconds until all others go on, median (least to most)")
    print(f"  {described(took)}")


def measure_commit(folder: Path, rounds: int) -> None:
    print("a commit, milliseconds, median of the jobs' medians (least to most)")
    for model in ("1-gb", "resnet50"):
        job = perseus_job(folder / model, 1, ["--max-np", "1"])
        job.command = [*job.command[:-2], str(WORKS / "elastic_committing.py"), model]
        paths = [str(WORKS.parents[1]), os.environ.get("PYTHONPATH", "")]
        job.environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        found = []
        for _ in progress(range(rounds), model):
            with running(job):
                job.process.wait(SECONDS_OF_COMMITS)
                said = (job.folder / "output").read_text().partition("commits ")[2].split()
            if not said:
                job.fail("it has not said how long commits took")
            found.append([float(each) for each in said[:3]])
        size, copied, in_place = zip(*found, strict=True)
        print(f"  {model}, {size[0] / 1e6:.0f} MB of state")
        print(f"    with copies             {described(copied)}")
        print(f"    copies=False            {described(in_place)}")


def described(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f}  ({min(seconds):.3f} to {max(seconds):.3f})"


PARTS = {
    "steps": measure_steps,
    "state": measure_state,
    "worlds": measure_worlds,
    "commit": measure_commit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", action=Different, choices=list(PARTS), default=list(PARTS)
    )
    parser.add_argument("--rounds", type=at_least(1), default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            PARTS[name](Path(folder), args.rounds)
            sys.stdout.flush()


if __name__ == "__main__":
    with ending.by_exception():
        main()
