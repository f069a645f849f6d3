"""Runs elastic jobs in which ranks and hosts come and go, and ranks are hurt.

python tests/chaos/elastic_campaign.py [--runs 300] [--seed 1] [--only K] [--json FILE]

A run starts with four ranks on two hosts of this machine, and one to four things happen at random
moments, some of them at once or while the ranks meet anew. One rank is spared, so the job must end
well: every sample has counted once in each epoch, and the weights are those of an undisturbed run
with the samples of the same steps. The launcher is one of those that are hurt: it is killed, and
another one takes the job over. If it is killed for good in a job that is to end with it, all ranks
must end. Nothing may be left behind. Run K of a seed has the same story whenever it is run.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import leftovers

HERE = Path(__file__).parent
TAGGED = re.compile(r"\[(\d+)\]<stdout>:(\{.*\})\s*$")
CRASHED = re.compile(r"terminate called|Fatal Python error|Traceback \(most recent call last\)")
HOSTS = ("localhost", "127.0.0.1")
PEER_TIMEOUT = 3
#: A job in which nothing happens takes a fifth of this.
LONGEST = 45.0
STEP_SECONDS = 0.02


@dataclass
class Event:
    """Something that happens so many seconds after training has begun."""

    name: str
    moment: float


@dataclass
class Run:
    number: int
    seed: int
    spared: int  # the rank at the start that is not hurt
    events: list[Event]
    flags: list[str]
    commit_every: int
    problems: list[str] = field(default_factory=list)
    seconds: float = 0
    outcome: str = ""

    def text(self) -> str:
        told = ", ".join(f"{event.name} {event.moment:.2f} s" for event in self.events)
        return f"{self.number:4} {told or 'nothing happens'}"


class Job:
    """A running job, as far as the events need it."""

    def __init__(self, run: Run, folder: Path, mark: str) -> None:
        self.run = run
        self.chance = random.Random(f"{run.seed}/{run.number}/events")
        self.output: list[str] = []
        self.said: list[dict[str, Any]] = []
        self.undo: list[tuple[float, Callable[[], object]]] = []
        self.launcher_is_killed = False
        self._hosts = folder / "hosts"
        self.slots = {"localhost": 2, "127.0.0.1": 2}
        self.list_hosts()
        job = [sys.executable, str(HERE / "elastic_job.py")]
        job += ["--step-seconds", str(STEP_SECONDS), "--commit-every", str(run.commit_every)]
        launcher = [sys.executable, "-m", "perseus.run", "-np", "4", "--min-np", "1"]
        launcher += ["--host-discovery-script", f"cat {self._hosts}", "--verbose", *run.flags]
        ends = any(event.name in LAST_EVENTS for event in run.events)
        self._environment = {
            **os.environ,
            leftovers.MARK: mark,
            "PERSEUS_PEER_TIMEOUT": str(PEER_TIMEOUT),
            "OMP_NUM_THREADS": "1",
            "PERSEUSRUN_IF_KILLED": "end" if ends else "go-on",
        }
        self._selector = selectors.DefaultSelector()
        self.process = self._launch([*launcher, *job])
        self._number = self.process.pid

    def _launch(self, command: list[str]) -> subprocess.Popen[str]:
        launcher = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert launcher.stdout
        os.set_blocking(launcher.stdout.fileno(), False)
        self._selector.register(launcher.stdout, selectors.EVENT_READ)
        self._rest = ""
        return launcher

    # ---- What happens.

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop_for_a_moment(self) -> None:
        if victim := self._signal(signal.SIGSTOP):
            later = time.monotonic() + self.chance.uniform(0.1, 1)
            self.undo.append((later, lambda: _signal(victim, signal.SIGCONT)))

    def stop_for_good(self) -> None:
        self._signal(signal.SIGSTOP)

    def drain_a_rank(self) -> None:
        self._signal(signal.SIGTERM)

    def drain_a_host(self) -> None:
        host = HOSTS[1 - self.run.spared // 2]
        command = [sys.executable, "-m", "perseus.run", "--drain", host]
        job = ["--job", str(self._number)]
        drain = subprocess.Popen(
            [*command, *job], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.undo.append((time.monotonic() + 5, drain.wait))

    def add_a_slot(self) -> None:
        self.slots[self.chance.choice(HOSTS)] += 1
        self.list_hosts()

    def take_a_slot(self) -> None:
        host = self.chance.choice(HOSTS)
        # The slot of the rank that is spared stays, with those before it.
        spared_host, spared_slot = HOSTS[self.run.spared // 2], self.run.spared % 2
        least = spared_slot + 1 if host == spared_host else 0
        self.slots[host] = max(least, self.slots[host] - 1)
        self.list_hosts()

    def lists_nonsense(self) -> None:
        self._hosts.write_text("localhost:many\n")
        self.undo.append((time.monotonic() + 1.5, self.list_hosts))

    def kill_and_resume(self) -> None:
        """Kills the launcher, and has another one take the job over, at once or later."""
        if self.process.poll() is not None:
            return
        self.process.kill()
        self.process.wait()
        while self.listen(time.monotonic()):
            pass
        assert self.process.stdout
        self._selector.unregister(self.process.stdout)
        self.process.stdout.close()
        time.sleep(self.chance.choice([0.0, self.chance.uniform(0, 2)]))
        resume = [sys.executable, "-m", "perseus.run", "--resume", str(self._number)]
        self.process = self._launch(resume)

    def kill_the_launcher(self) -> None:
        self.launcher_is_killed = True
        self.process.kill()

    def list_hosts(self) -> None:
        new = self._hosts.with_suffix(".new")
        new.write_text("".join(f"{host}:{n}\n" for host, n in self.slots.items() if n))
        new.rename(self._hosts)

    def _signal(self, number: signal.Signals) -> int | None:
        """Sends it to a rank that may be hurt, if there is one; returns the process."""
        pids = {said["rank"]: said["pid"] for said in self.said if said["what"] == "ready"}
        living = [
            pid
            for rank, pid in pids.items()
            if rank != self.run.spared and Path(f"/proc/{pid}/exe").exists()
        ]
        if not living:
            return None
        victim = self.chance.choice(living)
        _signal(victim, number)
        return victim

    # ---- Its output.

    def listen(self, deadline: float) -> bool:
        """Reads what comes, or waits until the deadline; returns False then, and at the end."""
        for moment, undo in [*self.undo]:
            if time.monotonic() >= moment:
                undo()
                self.undo.remove((moment, undo))
        soon = min([deadline, *(moment for moment, _ in self.undo)])
        if not self._selector.select(max(0.0, soon - time.monotonic())):
            return time.monotonic() < deadline
        assert self.process.stdout
        text = self.process.stdout.read()
        if not text:
            return False
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.output.append(line)
            if found := TAGGED.match(line):
                self.said.append({**json.loads(found[2]), "rank": int(found[1])})
        return True

    def wait_until_it_trains(self) -> None:
        deadline = time.monotonic() + LONGEST
        while sum(said["what"] == "began" for said in self.said) < 4:
            if not self.listen(deadline):
                return

    def end(self) -> None:
        for _, undo in self.undo:
            undo()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        if self.process.poll() is None:
            self.run.problems.append("HANG: the job had not ended in time")
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def judge(self) -> None:
        well = [said for said in self.said if said["what"] == "well"]
        sizes = [said["size"] for said in self.said if said["what"] == "began"]
        self.run.outcome = f"{len(well)} well, worlds of {','.join(map(str, sizes))}"[:60]
        if self.launcher_is_killed:
            self.run.outcome = "the launcher was killed"
        elif any(f"no elastic job {self._number} of this user" in line for line in self.output):
            self.run.outcome = "the job ended before it was resumed"
        else:
            if self.process.returncode != 0:
                self.run.problems.append(f"it ended with status {self.process.returncode}")
            if not any(said["rank"] == self.run.spared for said in well):
                self.run.problems.append("the rank that was spared has not come to the end")
            if any(CRASHED.search(line) for line in self.output):
                self.run.problems.append("CRASH")
        if len({(said["weights"], said["steps"]) for said in well}) > 1:
            self.run.problems.append(f"DIFFERENT WEIGHTS: {well}")
        if self.run.problems:
            self.run.problems.append("OUTPUT\n" + "\n".join(self.output[-80:]))


EVENTS: dict[str, Callable[[Job], None]] = {
    "a rank is killed": Job.kill,
    "a rank is stopped for a moment": Job.stop_for_a_moment,
    "a rank is stopped for good": Job.stop_for_good,
    "a rank is drained": Job.drain_a_rank,
    "a host is drained": Job.drain_a_host,
    "a slot is added": Job.add_a_slot,
    "a slot is taken": Job.take_a_slot,
    "the hosts are nonsense": Job.lists_nonsense,
    "the launcher is killed, and the job resumed": Job.kill_and_resume,
}
LAST_EVENTS: dict[str, Callable[[Job], None]] = {"the launcher is killed": Job.kill_the_launcher}


def drawn(number: int, seed: int) -> Run:
    """Run `number` of the campaign of this seed."""
    chance = random.Random(f"{seed}/{number}")
    moments = [chance.uniform(0, 1.5)]
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        # At once, while the ranks meet anew, or later.
        gap = chance.choice([0.0, chance.uniform(0, 0.1), chance.uniform(0.1, 2)])
        moments.append(moments[-1] + gap)
    events = [Event(chance.choice(list(EVENTS)), moment) for moment in moments]
    if number == 0:
        events = []
    elif chance.random() < 0.05:
        events[-1].name = next(iter(LAST_EVENTS))
    flags = ["--join", chance.choice(["background", "background", "at-once"])]
    # By hosts, a rank that is hurt would take the spared one along.
    flags += ["--blacklist-by", "slot"]
    if chance.random() < 0.7:
        flags += ["--blacklist-cooldown-range", "1", "1"]
    if chance.random() < 0.3:
        flags += ["--max-np", str(chance.randint(4, 5))]
    spared = chance.randrange(4)
    return Run(number, seed, spared, events, flags, chance.choice([1, 1, 3]))


def carry_out(run: Run) -> None:
    before = leftovers.things()
    mark = f"{os.getpid()}-{run.number}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(run, Path(folder), mark)
        try:
            job.wait_until_it_trains()
            trains_since = time.monotonic()
            for event in run.events:
                while job.listen(trains_since + event.moment):
                    pass
                (EVENTS | LAST_EVENTS)[event.name](job)
            deadline = trains_since + LONGEST
            while job.listen(deadline):
                pass
        finally:
            job.end()
    job.judge()
    run.seconds = time.monotonic() - began
    run.problems += leftovers.found(mark, before)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with run K")
    parser.add_argument("--only", type=int, metavar="K", help="run K alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome of each run")
    args = parser.parse_args()
    numbers = range(args.first, args.runs) if args.only is None else [args.only]
    runs = []
    for number in numbers:
        run = drawn(number, args.seed)
        carry_out(run)
        runs.append(run)
        print(f"{run.text():100} {run.seconds:5.1f} s  {run.outcome}", flush=True)
        for problem in run.problems:
            print(f"    {problem}", flush=True)
    bad = [run for run in runs if run.problems]
    for name, count in sorted(collections.Counter(e.name for r in runs for e in r.events).items()):
        print(f"  {name:44} {count:4} times")
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
