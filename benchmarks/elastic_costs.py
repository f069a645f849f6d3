"""The costs of elastic training: a step while nothing happens, a large state, many ranks, a commit.

python benchmarks/elastic_costs.py [--only steps state hosts worlds commit]

steps   The same training in jobs that take turns of 0.4 s: two that are not elastic and keep no
        state, and elastic ones which look for changes after each step and commit after every
        hundredth, or after each. The ratio of the first two tells what chance does.
state   A rank joins one other, which has 1 GB of state: the seconds from the moment at which the
        new one is about to train until it has the state, those in which the state is moved and
        saved, and for how long the other stands still, from its last step on.
hosts   The same over hosts whose links are capped (contest/lab.py): a fourth one joins three, and
        the share of its link that the state has filled. Its link is the limit, or theirs are.
worlds  One of 64 ranks is killed, on this machine alone: the seconds until all others have done a
        step in their new world.
commit  A commit of 1 GB of parameters with SGD, and of ResNet-50 with momentum, with copies and
        without: TorchState(copies=False).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from contest import ending
from contest.arguments import Different, at_least
from contest.elastic_jobs import (
    CALM_SECONDS,
    WORKS,
    Entry,
    Job,
    perseus,
    perseus_job,
    perseus_over_hosts,
    running,
)
from contest.lab import PAYLOAD_OF_A_FRAME, Lab, open_lab, why_not
from contest.progress import progress

SECONDS_OF_A_TURN = 0.4
TURNS_TO_WARM_UP = 5
TURNS = 20
STATE_MB = 500
HOSTS = 4
#: What a host receives that joins, and what each of the others sends, Mbit/s.
JOINER_MBIT = 1000
LINKS = (1000, 400)
#: A job that times commits takes no longer.
SECONDS_OF_COMMITS = 300.0


def measure_steps(folder: Path, rounds: int) -> None:
    ways: dict[str, Callable[[Path], Job]] = {
        "not elastic": lambda at: perseus_job(at, 2, [], "--commit-every", "0"),
        "not elastic, another job": lambda at: perseus_job(at, 2, [], "--commit-every", "0"),
        "elastic, a commit in 100": lambda at: perseus(at, 2, "--commit-every", "100"),
        "elastic, all commit": lambda at: perseus(at, 2, "--commit-every", "1"),
    }
    medians: dict[str, list[float]] = {way: [] for way in ways}
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for number in progress(range(rounds), "steps"):
        jobs = {way: make(folder / f"steps{number}{way}") for way, make in ways.items()}
        turns = in_turns(jobs)
        base = turns["not elastic"]
        for way, found in turns.items():
            medians[way] += found
            ratios[way].append(statistics.median(a / b for a, b in zip(found, base, strict=True)))
    print(
        "a step of 4 MB of parameters at 2 ranks, milliseconds, and its ratio to the first job's:"
    )
    print("the median of the rounds' medians (least to most)")
    for way, found in medians.items():
        print(f"  {way:26} {statistics.median(found) * 1e3:6.2f}   {described(ratios[way])}")


def in_turns(jobs: dict[str, Job]) -> dict[str, list[float]]:
    """Returns the median seconds of a step in each turn, of jobs of which one runs at a time.

    All others are stopped meanwhile, so that what else the machine does meets all of them.
    """
    medians: dict[str, list[float]] = {name: [] for name in jobs}
    with contextlib.ExitStack() as stack:
        for job in jobs.values():
            stack.enter_context(running(job))
            job.wait_for(2, 0, 2)
            job.signal(signal.SIGSTOP)
        for turn in range(TURNS_TO_WARM_UP + TURNS):
            for name, job in random.sample(list(jobs.items()), len(jobs)):
                job.signal(signal.SIGCONT)
                began = time.monotonic()
                time.sleep(SECONDS_OF_A_TURN)
                ended = time.monotonic()
                job.signal(signal.SIGSTOP)
                if turn >= TURNS_TO_WARM_UP:
                    medians[name].append(statistics.median(intervals(job, began, ended)))
        for job in jobs.values():
            job.signal(signal.SIGCONT)
    return medians


def intervals(job: Job, began: float, ended: float) -> list[float]:
    """Returns the seconds between steps of all ranks, without the first ones of a turn."""
    return [
        b.moment - a.moment
        for steps in job.steps().values()
        for a, b in itertools.pairwise([step for step in steps if began < step.moment < ended][2:])
    ]


def joined(job: Job, since: float) -> tuple[Entry, float]:
    """Returns how a new rank has joined, and for how long a rank that was there has stood still."""
    (new,) = (pid for pid, steps in job.steps().items() if steps[0].moment > since)
    old, steps = next(found for found in job.steps().items() if found[1][0].moment < since)
    again = job.entries(old)[-1].moment
    return job.entries(new)[-1], again - max(s.moment for s in steps if s.moment < again)


def measure_state(folder: Path, rounds: int) -> None:
    entries, pauses = [], []
    for number in progress(range(rounds), "state"):
        with running(perseus(folder / f"state{number}", 2, "--frozen-mb", "1000")) as job:
            job.wait_for(2, 0, 2)
            time.sleep(CALM_SECONDS)
            killed = job.kill_one()
            job.wait_for(2, killed, 2)
            entry, pause = joined(job, killed)
            entries.append(entry)
            pauses.append(pause)
    print("1 GB of state to a rank that joins, on one host, seconds, median (least to most)")
    print(f"  until it has the state      {described([entry.waited for entry in entries])}")
    print(f"  of these, moved and saved   {described([entry.synced for entry in entries])}")
    print(f"  the other stands still      {described(pauses)}")


def measure_hosts(folder: Path, rounds: int) -> None:
    if why := why_not():
        print(f"hosts is left out: {why}")
        return
    for link in LINKS:
        entries, pauses = [], []
        for number in progress(range(rounds), f"hosts, links of {link} Mbit/s"):
            with open_lab(HOSTS, link) as lab:
                entry, pause = join_over_hosts(folder / f"hosts{link}.{number}", lab)
            entries.append(entry)
            pauses.append(pause)
        megabits = STATE_MB * 8
        limit = JOINER_MBIT * PAYLOAD_OF_A_FRAME
        shares = [megabits / entry.synced / limit for entry in entries]
        print(
            f"{STATE_MB} MB of state to a rank that joins over {JOINER_MBIT} Mbit/s, from "
            f"{HOSTS - 1} hosts that send {link} Mbit/s each, median (least to most)"
        )
        print(f"  moved and saved, seconds    {described([entry.synced for entry in entries])}")
        print(f"  share of the joiner's link  {described(shares)}")
        print(f"  the others stand still      {described(pauses)}")


def join_over_hosts(folder: Path, lab: Lab) -> tuple[Entry, float]:
    """A host joins the others, and receives JOINER_MBIT; returns what `joined` does."""
    addresses = [lab.address(host) for host in range(lab.hosts)]
    lab.netlab("receive", lab.hosts - 1, JOINER_MBIT)
    folder.mkdir()
    file = folder / "hosts"
    file.write_text("".join(f"{address} slots=1\n" for address in addresses[:-1]))
    options = ["--frozen-mb", str(STATE_MB), "--commit-every", "10"]
    with running(perseus_over_hosts(folder, lab, file, lab.hosts - 1, *options)) as job:
        job.wait_for(lab.hosts - 1, 0, lab.hosts - 1)
        time.sleep(CALM_SECONDS)
        since = time.monotonic()
        changed = file.with_suffix(".new")
        changed.write_text("".join(f"{address} slots=1\n" for address in addresses))
        changed.replace(file)
        job.wait_for(lab.hosts, since, lab.hosts)
        return joined(job, since)


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
    "hosts": measure_hosts,
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
