"""Runs training jobs and injects a fault into each; see faults.py.

python tests/chaos/campaign.py [--runs 500] [--seed 1] [--only K] [--json FILE]

Every run must end with the right numbers, or with the right error in bounded time, and leave no
process, shared memory or socket behind. Run K of a seed is the same whenever it is run: the job,
the fault, and when it comes. As root also over hosts, in network namespaces, and with a /dev/shm of
the campaign's own.
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
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import faults
import lab
import leftovers
from faults import WELL, Expected, Job, Place, lost, short_or_well

HERE = Path(__file__).parent
TAG = re.compile(r"\[(\d+)\]<std(out|err)>:(.*)", re.DOTALL)
KILLED = re.compile(r"perseusrun: rank (\d+) on host \S+ was killed by (\w+)")
EXITED = re.compile(r"perseusrun: rank (\d+) on host \S+ exited with code")
RAISED = re.compile(r"Traceback \(most recent call last\)|MemoryError|OSError")
CRASHED = re.compile(r"\[\d+\]<stderr>:(terminate called|Fatal Python error)")
#: Signals with which faults, and the launcher, end ranks.
KILLS = ("SIGKILL", "SIGTERM")
#: A job without a fault takes a tenth of this.
LONGEST = 90
HOSTS = 4


@dataclass(frozen=True)
class Story:
    """A kind of fault: on one host, on several, or on either.

    act: called once the job runs; returns the outcome to expect. lot: in place of act, what one
    rank does to itself, with the outcome to expect. shm: bytes of the job's own /dev/shm. survives:
    the remaining ranks must meet anew, and end well.
    """

    name: str
    act: Callable[[Job], Expected] | None = None
    lot: Callable[[random.Random, int], tuple[dict[str, object], Expected]] | None = None
    hosts: bool | None = None
    shm: int | None = None
    survives: bool = False

    @property
    def needs_root(self) -> bool:
        return bool(self.hosts) or self.shm is not None


def _late(chance: random.Random, rank: int) -> tuple[dict[str, object], Expected]:
    return {"rank": rank, "delay": chance.uniform(0.5, 3)}, WELL


def _few_descriptors(chance: random.Random, rank: int) -> tuple[dict[str, object], Expected]:
    return {"rank": rank, "descriptors": chance.randrange(40)}, short_or_well(rank)


def _little_memory(chance: random.Random, rank: int) -> tuple[dict[str, object], Expected]:
    return {"rank": rank, "megabytes": chance.randrange(120)}, short_or_well(rank)


def _runs_out_of_descriptors(
    chance: random.Random, rank: int
) -> tuple[dict[str, object], Expected]:
    step = chance.randrange(1, 20)
    return {"rank": rank, "descriptors": 0, "short_at": step}, short_or_well(rank)


def _runs_out_of_memory(chance: random.Random, rank: int) -> tuple[dict[str, object], Expected]:
    step = chance.randrange(1, 20)
    megabytes = chance.randrange(12)
    return {"rank": rank, "megabytes": megabytes, "short_at": step}, short_or_well(rank)


def _exits(chance: random.Random, rank: int) -> tuple[dict[str, object], Expected]:
    return {"rank": rank, "exit_at": chance.randrange(20)}, lost(rank)


def _raises(chance: random.Random, rank: int) -> tuple[dict[str, object], Expected]:
    return {"rank": rank, "raise_at": chance.randrange(20)}, lost(rank)


STORIES = (
    Story("nothing happens", act=lambda _: WELL),
    Story("a rank is killed", faults.kill),
    Story("a rank is terminated", faults.terminate),
    Story("two ranks are killed", faults.kill_two),
    Story("a rank is stopped for a moment", faults.stop_for_a_moment),
    Story("a rank is stopped for good", faults.stop_for_good),
    Story("the launcher is killed", faults.kill_the_launcher),
    Story("a rank is interrupted", faults.interrupt),
    Story("a rank is late", lot=_late),
    Story("a rank has few descriptors", lot=_few_descriptors),
    Story("a rank has little memory", lot=_little_memory),
    Story("a rank exits", lot=_exits),
    Story("a rank's script raises", lot=_raises),
    Story("a rank runs out of descriptors", lot=_runs_out_of_descriptors),
    Story("a rank runs out of memory", lot=_runs_out_of_memory),
    Story("/dev/shm is full", act=lambda _: WELL, shm=4096),
    Story("/dev/shm fills up", faults.fill_shm, shm=16 << 20),
    Story("a host has no free port", faults.take_all_ports, hosts=True),
    Story("a rank is killed, the others go on", faults.kill, survives=True),
    Story("two are killed, the others go on", faults.kill_two, survives=True),
    Story("a rank is stopped, the others go on", faults.stop_for_good, survives=True),
    Story("a rank exits, the others go on", lot=_exits, survives=True),
    Story("a host is cut off", faults.cut_a_host_off, hosts=True),
    Story(
        "a host is cut off, the others go on",
        faults.cut_a_host_off_and_go_on,
        hosts=True,
        survives=True,
    ),
    Story("a host is cut off for a moment", faults.cut_a_host_off_for_a_moment, hosts=True),
    Story("a host's link is slow", faults.slow_a_host_down, hosts=True),
)


@dataclass
class Run:
    """One job and its outcome."""

    number: int
    seed: int
    story: Story
    ranks: int
    hosts: int
    torch: bool
    moment: float  # from the first step on; before init has ended if negative
    job_seed: int
    problems: list[str] = field(default_factory=list)
    seconds: float = 0
    outcome: str = ""

    def text(self) -> str:
        place = f"{self.hosts} hosts" if self.hosts > 1 else "1 host"
        kind = "torch" if self.torch else "numpy"
        when = f"{self.moment:+.2f} s"
        return f"{self.number:4} {self.story.name}, {self.ranks} ranks on {place}, {kind}, {when}"


def drawn(number: int, seed: int, as_root: bool) -> Run:
    """Run `number` of the campaign of this seed."""
    chance = random.Random(f"{seed}/{number}")
    stories = [story for story in STORIES if as_root or not story.needs_root]
    story = stories[number % len(stories)] if number < len(stories) else chance.choice(stories)
    on_hosts = story.hosts if story.hosts is not None else as_root and chance.random() < 0.4
    return Run(
        number,
        seed,
        story,
        ranks=HOSTS if on_hosts else chance.choice([2, 3, 4]),
        hosts=HOSTS if on_hosts else 1,
        torch=chance.random() < 0.15 and not story.survives,
        moment=chance.choice([chance.uniform(-0.5, 0), chance.uniform(0, 1)]),
        job_seed=chance.randrange(1000),
    )


def carry_out(run: Run) -> None:
    """Runs the job and fills in its outcome."""
    chance = random.Random(f"{run.seed}/{run.number}/faults")
    victim = chance.randrange(run.ranks)
    lot, expected = run.story.lot(chance, victim) if run.story.lot else ({}, WELL)
    before = leftovers.things()
    mark = f"{os.getpid()}-{run.number}"
    began = time.monotonic()
    watched = Watched(_start(run, mark, lot), run)
    try:
        if run.story.act is not None:
            expected = watched.act(run.story.act, chance, run.moment)
        else:
            watched.have_all_said("ready")
        watched.wait(expected)
    finally:
        watched.end()
    run.seconds = time.monotonic() - began
    watched.judge(expected)
    run.problems += leftovers.found(mark, before)


def _start(run: Run, mark: str, lot: dict[str, object]) -> subprocess.Popen[str]:
    job = [sys.executable, str(HERE / "job.py"), "--steps", "40", "--seed", str(run.job_seed)]
    if run.torch:
        job.append("--torch")
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(run.ranks)]
    if run.story.survives:
        job.append("--survive")
        launcher += ["--min-np", "1"]
    if run.hosts > 1:
        places = ",".join(f"10.86.0.{host + 1}:1" for host in range(run.hosts))
        launcher = [str(lab.NETLAB), "at", "0", *launcher, "-H", places]
    if run.story.shm is not None:
        launcher = lab.with_own_shm(run.story.shm, launcher)
    environment = {
        **os.environ,
        leftovers.MARK: mark,
        "PERSEUSRUN_RSH": f"{lab.NETLAB} rsh",
        "CHAOS_LOT": json.dumps(lot),
        "PERSEUS_PEER_TIMEOUT": str(faults.PEER_TIMEOUT),
        "PERSEUS_START_TIMEOUT": str(faults.START_TIMEOUT),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [*launcher, *job],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


class Watched:
    """A running job, and the output of its ranks."""

    def __init__(self, process: subprocess.Popen[str], run: Run) -> None:
        self._process = process
        self._run = run
        self._said: list[dict[str, object]] = []
        self._output: list[str] = []
        self._pids: dict[int, int] = {}
        self._undo: list[Callable[[], None]] = []
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(process.stdout, selectors.EVENT_READ)
        self._rest = ""

    def act(self, act: Callable[[Job], Expected], chance: random.Random, moment: float) -> Expected:
        """Injects the fault at its moment; returns the outcome to expect."""
        if not self.have_all_said("started" if moment < 0 else "ready"):
            return WELL  # it has ended before
        self._listen_for(moment + 0.5 if moment < 0 else moment)
        per_host = self._run.ranks // self._run.hosts
        places = [
            Place(rank, rank // per_host if self._run.hosts > 1 else 0, pid)
            for rank, pid in sorted(self._pids.items())
        ]
        job = Job(places, self._run.hosts, self._process.pid, chance)
        try:
            expected = act(job)
        finally:
            self._undo += job.undo
        # A rank that has ended by then cannot be hurt, at most killed before its process has
        # exited.
        if len(self._ranks_that_said("done")) == self._run.ranks:
            return replace(WELL, hurt=expected.hurt)
        return expected

    def have_all_said(self, what: str) -> bool:
        """Waits until all ranks have said it; returns False if they never do."""
        deadline = time.monotonic() + LONGEST
        while len(self._ranks_that_said(what)) < self._run.ranks:
            if not self._listen(deadline):
                return False
        return True

    def wait(self, expected: Expected) -> None:
        deadline = time.monotonic() + expected.within
        while self._listen(deadline):
            pass

    def end(self) -> None:
        for undo in self._undo:
            undo()
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        if self._process.poll() is None:
            self._run.problems.append("HANG: the job had not ended in time")
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def judge(self, expected: Expected) -> None:
        """Compares the outcome with the expected one."""
        self._look_for_problems(expected)
        if self._run.problems:
            self._run.problems.append("OUTPUT\n" + "".join(self._output[-60:]))

    def _look_for_problems(self, expected: Expected) -> None:
        run, ranks = self._run, self._run.ranks
        done = self._ranks_that_said("done")
        errors = [said for said in self._said if said["what"] == "error"]
        run.outcome = f"{len(done)} well, {len(errors)} errors"
        for said in self._said:
            if said["what"] == "wrong":
                run.problems.append(f"WRONG RESULT: {said}")
        self._look_for_crashes(expected)
        self._look_at_errors(expected)
        if run.story.survives and not expected.well:
            if left := set(range(ranks)) - expected.hurt - done:
                run.problems.append(f"ranks {left} did not go on")
            return
        if len(done) == ranks:
            if not expected.well:
                run.problems.append("all ranks ended well, although one was lost")
            return
        if expected.error is None:
            run.problems.append("it failed, although nothing was lost")
        self._look_for_silence(expected)

    def _look_for_crashes(self, expected: Expected) -> None:
        """The launcher reports the first crash; messages of Python or C++ show the others."""
        for line in self._output:
            killed = KILLED.match(line)
            by_fault = killed and int(killed[1]) in expected.hurt and killed[2] in KILLS
            if (killed and not by_fault) or CRASHED.match(line):
                self._run.problems.append(f"CRASH: {line.strip()}")

    def _look_at_errors(self, expected: Expected) -> None:
        """Checks that errors name a lost rank; a rank that was hurt may report anything."""
        if expected.error is None:
            return
        for said in self._said:
            if said["what"] not in ("error", "anew"):
                continue
            named = {int(number) for number in re.findall(r"\brank (\d+)\b", str(said["text"]))}
            is_victims_own = int(str(said["rank"])) in expected.hurt | expected.short
            if not named & expected.error and not is_victims_own:
                self._run.problems.append(f"names none of {set(expected.error)}: {said}")

    def _look_for_silence(self, expected: Expected) -> None:
        """Every rank that had begun with the others, and was not hurt, must have said how it ended:
        if one hangs or crashes, the launcher ends it after a while, and that would go unnoticed."""
        begun = self._ranks_that_said("meets") - expected.hurt
        short = self._ranks_that_said("started") & expected.short
        told = self._ranks_that_said("done") | self._ranks_that_said("error")
        told |= self._ranks_that_raised() & expected.short
        if silent := (begun | short) - told:
            self._run.problems.append(f"SILENT: ranks {silent} have not said how they ended")

    def _ranks_that_raised(self) -> set[int]:
        tagged = [match for line in self._output if (match := TAG.match(line))]
        raised = {int(tag[1]) for tag in tagged if tag[2] == "err" and RAISED.match(tag[3])}
        return raised | {int(found[1]) for line in self._output if (found := EXITED.match(line))}

    def _ranks_that_said(self, what: str) -> set[int]:
        return {int(str(said["rank"])) for said in self._said if said["what"] == what}

    def _listen_for(self, seconds: float) -> None:
        deadline = time.monotonic() + max(0.0, seconds)
        while time.monotonic() < deadline and self._listen(deadline):
            pass

    def _listen(self, deadline: float) -> bool:
        """Reads some output; returns False at its end, or when the time is up."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if not self._selector.select(min(left, 0.2)):
            return True
        assert self._process.stdout
        text = self._process.stdout.read()
        if text == "":
            return False
        *lines, self._rest = (self._rest + (text or "")).split("\n")
        for line in lines:
            self._output.append(line + "\n")
            tagged = TAG.match(line)
            if tagged and tagged[3].startswith("{"):
                with suppress(json.JSONDecodeError):
                    said = json.loads(tagged[3])
                    self._said.append(said)
                    if said["what"] in ("started", "ready"):
                        self._pids[int(said["rank"])] = said["pid"]
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with run K")
    parser.add_argument("--only", type=int, metavar="K", help="run K alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome of each run")
    args = parser.parse_args()
    as_root = lab.enter()
    lab.end_orderly()
    numbers = range(args.first, args.runs) if args.only is None else [args.only]
    runs = []
    with lab.hosts(HOSTS) if as_root else nullcontext():
        for number in numbers:
            run = drawn(number, args.seed, as_root)
            carry_out(run)
            runs.append(run)
            print(f"{run.text():75} {run.seconds:5.1f} s  {run.outcome}", flush=True)
            for problem in run.problems:
                print(f"    {problem}", flush=True)
    bad = [run for run in runs if run.problems]
    by_story = collections.Counter(run.story.name for run in runs)
    for name, count in sorted(by_story.items()):
        print(f"  {name:35} {count:4} runs")
    print(f"{len(runs)} runs of seed {args.seed}, {len(bad)} with problems")
    if args.json:
        args.json.write_text(
            json.dumps(
                [
                    {
                        "run": run.number,
                        "story": run.story.name,
                        "ranks": run.ranks,
                        "hosts": run.hosts,
                        "seconds": round(run.seconds, 2),
                        "outcome": run.outcome,
                        "problems": run.problems,
                    }
                    for run in runs
                ],
                indent=1,
            )
            + "\n"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
