"""Runs elastic jobs in which ranks and hosts come and go, and both are hurt.

python tests/chaos/elastic_campaign.py [--runs 300] [--seed 1] [--only K] [--json FILE]

A run starts with four ranks, and one to four things happen at random moments, some of them at once
or while the ranks meet anew. One rank is spared, so the job must end well: every sample has counted
once in each epoch, and the weights are those of an undisturbed run with the samples of the same
steps. The launcher is one of those that are hurt: it is killed, and another one takes the job over.
If it is killed for good in a job that is to end with it, all ranks must end. Nothing may be left
behind. Run K of a seed has the same story whenever it is run.

As root, with sshd, half of the runs are over three hosts, in network namespaces: in these, hosts
are cut off, lose their power or are preempted, too.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lab
import leftovers
from elastic_run import (
    EVENTS,
    EVENTS_ON_ONE_MACHINE,
    EVENTS_OVER_HOSTS,
    LAST_EVENTS,
    ONE_MACHINE,
    SEVERAL_HOSTS,
    Event,
    Job,
    Run,
)
from sshd import SshHosts, serve_ssh

#: After a cut, sshd ends a session in which it has no answer for so many seconds.
SECONDS_WITHOUT_ANSWER = 6


def drawn(number: int, seed: int, has_hosts: bool) -> Run:
    """Run `number` of the campaign of this seed."""
    if has_hosts and number and random.Random(f"{seed}/{number}/where").random() < 1 / 2:
        return _drawn_over_hosts(number, seed)
    chance = random.Random(f"{seed}/{number}")
    names = [*EVENTS, *EVENTS_ON_ONE_MACHINE]
    events = [Event(chance.choice(names), moment) for moment in _moments(chance)]
    if number == 0:
        events = []
    elif chance.random() < 0.05:
        events[-1].name = next(iter(LAST_EVENTS))
    flags = _flags(chance)
    spared = chance.randrange(4)
    commit_every = chance.choice([1, 1, 3])
    return Run(number, seed, spared, events, flags, commit_every, ONE_MACHINE, False)


def _drawn_over_hosts(number: int, seed: int) -> Run:
    chance = random.Random(f"{seed}/{number}/over hosts")
    names = [*EVENTS, *EVENTS_OVER_HOSTS, *EVENTS_OVER_HOSTS]
    events = [Event(chance.choice(names), moment) for moment in _moments(chance)]
    chance.choice(events).name = chance.choice(list(EVENTS_OVER_HOSTS))
    if chance.random() < 0.05:
        events[-1].name = next(iter(LAST_EVENTS))
    spared = chance.randrange(SEVERAL_HOSTS["a"])  # which is the launcher's host, and stays
    flags, commit_every = _flags(chance), chance.choice([1, 1, 3])
    return Run(number, seed, spared, events, flags, commit_every, SEVERAL_HOSTS, True)


def _moments(chance: random.Random) -> list[float]:
    moments = [chance.uniform(0, 1.5)]
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        # At once, while the ranks meet anew, or later.
        gap = chance.choice([0.0, chance.uniform(0, 0.1), chance.uniform(0.1, 2)])
        moments.append(moments[-1] + gap)
    return moments


def _flags(chance: random.Random) -> list[str]:
    flags = ["--join", chance.choice(["background", "background", "at-once"])]
    # By hosts, a rank that is hurt would take the spared one along.
    flags += ["--blacklist-by", "slot"]
    if chance.random() < 0.7:
        flags += ["--blacklist-cooldown-range", "1", "1"]
    if chance.random() < 0.3:
        flags += ["--max-np", str(chance.randint(4, 5))]
    return flags


def carry_out(run: Run, ssh: SshHosts | None) -> None:
    before = leftovers.things()
    mark = f"{os.getpid()}-{run.number}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(run, Path(folder), mark, ssh if run.is_over_hosts else None)
        try:
            job.wait_until_it_trains()
            trains_since = time.monotonic()
            for event in run.events:
                while job.listen(trains_since + event.moment):
                    pass
                happenings = EVENTS | EVENTS_ON_ONE_MACHINE | EVENTS_OVER_HOSTS | LAST_EVENTS
                happenings[event.name](job)
            deadline = trains_since + run.longest
            while job.listen(deadline):
                pass
        finally:
            job.end()
    job.judge()
    run.seconds = time.monotonic() - began
    run.problems += leftovers.found(mark, before, 15 if run.is_over_hosts else 5)
    if run.is_over_hosts:
        run.problems += _left_on_hosts()


def _left_on_hosts() -> list[str]:
    """Returns what a run has left on the hosts: agents, and those that serve them."""
    deadline = time.monotonic() + 15
    while left := [process for i in range(len(SEVERAL_HOSTS)) for process in lab.processes_on(i)]:
        if time.monotonic() >= deadline:
            return [f"LEFT on hosts: {left}"]
        time.sleep(0.05)
    return []


@contextmanager
def _hosts(as_root: bool) -> Iterator[SshHosts | None]:
    """Makes the hosts; None if they cannot be."""
    if not as_root or shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        print("without root and sshd, no job is over hosts", flush=True)
        yield None
        return
    # A cut leaves neither an agent nor a session of sshd for ever.
    settings = {"ClientAliveInterval": SECONDS_WITHOUT_ANSWER // 2, "ClientAliveCountMax": 2}
    with tempfile.TemporaryDirectory() as folder, lab.hosts(len(SEVERAL_HOSTS)):
        with serve_ssh(Path(folder), list(SEVERAL_HOSTS), **settings) as ssh:
            yield ssh


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with run K")
    parser.add_argument("--only", type=int, metavar="K", help="run K alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome of each run")
    args = parser.parse_args()
    as_root = lab.enter()
    lab.end_orderly()
    numbers = range(args.first, args.runs) if args.only is None else [args.only]
    runs = []
    with _hosts(as_root) as ssh:
        for number in numbers:
            run = drawn(number, args.seed, has_hosts=ssh is not None)
            carry_out(run, ssh)
            runs.append(run)
            print(f"{run.text():100} {run.seconds:5.1f} s  {run.outcome}", flush=True)
            for problem in run.problems:
                print(f"    {problem}", flush=True)
    bad = [run for run in runs if run.problems]
    for name, count in sorted(collections.Counter(e.name for r in runs for e in r.events).items()):
        print(f"  {name:44} {count:4} times")
    over_hosts = sum(run.is_over_hosts for run in runs)
    print(f"{over_hosts} runs over hosts")
    print(f"{len(runs)} runs of seed {args.seed}, {len(bad)} with problems")
    if args.json:
        found = [
            {
                "run": run.number,
                "events": [event.name for event in run.events],
                "seconds": round(run.seconds, 2),
                "outcome": run.outcome,
                "problems": run.problems,
            }
            for run in runs
        ]
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
