"""Ranks that are killed and come back: how long training stands still, beside torchrun.

python benchmarks/elastic.py [--kills 10] [--ranks 4]

In a job of Perseus, a rank is killed again and again (kill -9). Two times count. From the kill
until each survivor has done its next step: no process is started again. And how long the steps of
the others take longer when a new rank joins in its place, however long that one takes to start.

Under torchrun, with Gloo, DDP and a checkpoint after each step, all ranks start again after a kill:
the time counts until all have done a step. The two jobs take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contest import ending
from contest.arguments import at_least

WORKS = Path(__file__).parent / "contest/works"
#: Seconds of training between a kill and what came before it.
CALM = 1.0
EVENT_SECONDS = 120.0


@dataclass(frozen=True)
class Step:
    moment: float  # seconds of time.monotonic, which all processes of a host share
    size: int


@dataclass
class Job:
    """A job whose ranks write each step that they have done into a file of their own."""

    folder: Path
    command: list[str]
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        environment = {**os.environ, "STEPS_FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            self.command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()

    def steps(self) -> dict[int, list[Step]]:
        """Returns the steps of each process that lives, by its number."""
        found = {}
        for file in self.folder.glob("*.steps"):
            pid = int(file.stem)
            if not Path(f"/proc/{pid}").exists():
                continue
            lines = file.read_text().split("\n")[:-1]
            found[pid] = [Step(float(a), int(b)) for a, b in map(str.split, lines)]
        return found

    def wait_for(self, size: int, since: float, ranks: int) -> dict[int, Step]:
        """Returns the first step after `since`, in a world of this size, of so many processes."""
        deadline = time.monotonic() + EVENT_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                sys.exit(f"the job has ended: {' '.join(self.command)}")
            first = {}
            for pid, steps in self.steps().items():
                after = [s for s in steps[-2000:] if s.moment > since and s.size == size]
                if after:
                    first[pid] = after[0]
            if len(first) >= ranks:
                return first
            time.sleep(0.02)
        sys.exit(f"no {ranks} ranks have done a step in {EVENT_SECONDS:.0f} s")

    def kill_one(self) -> float:
        """Kills a rank that has done a step lately; returns when."""
        now = time.monotonic()
        last = {pid: steps[-1].moment for pid, steps in self.steps().items() if steps}
        live = [pid for pid, moment in last.items() if now - moment < CALM]
        os.kill(random.choice(live), signal.SIGKILL)
        return now


def perseus(folder: Path, ranks: int) -> Job:
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks), "--min-np", "1"]
    launcher += ["--max-np", str(ranks), "--blacklist-by", "slot"]
    launcher += ["--blacklist-cooldown-range", "1", "1"]
    return Job(folder, [*launcher, sys.executable, str(WORKS / "elastic_training.py")])


def torchrun(folder: Path, ranks: int) -> Job:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(ranks), "--max-restarts", "1000"]
    return Job(folder, [*launcher, str(WORKS / "restarted_training.py")])


@contextlib.contextmanager
def running(job: Job) -> Iterator[Job]:
    job.folder.mkdir()
    job.start()
    try:
        yield job
    finally:
        job.stop()


def one_kill(job: Job, ranks: int) -> tuple[float, float]:
    """Returns the seconds until the survivors' next step, and by how many a joiner delays them."""
    begun = max(step.moment for step in job.wait_for(ranks, 0, ranks).values())
    time.sleep(CALM)
    before = job.steps()
    killed = job.kill_one()
    survivors = job.wait_for(ranks - 1, killed, ranks - 1)
    recovery = max(step.moment for step in survivors.values()) - killed
    joined = job.wait_for(ranks, killed, ranks)
    pauses = []
    for pid in survivors:
        steps = job.steps()[pid]
        first = next(i for i, s in enumerate(steps) if s is not None and s == joined[pid])
        pauses.append(steps[first].moment - steps[first - 1].moment)
    usual = [
        after.moment - earlier.moment
        for steps in before.values()
        for earlier, after in itertools.pairwise(steps)
        if earlier.moment > begun
    ]
    return recovery, max(pauses) - statistics.median(usual)


def one_restart(job: Job, ranks: int) -> float:
    job.wait_for(ranks, 0, ranks)
    time.sleep(CALM)
    killed = job.kill_one()
    return max(step.moment for step in job.wait_for(ranks, killed + CALM, ranks).values()) - killed


def described(what: str, seconds: list[float]) -> str:
    return (
        f"{what:42} median {statistics.median(seconds):6.2f} s, "
        f"{min(seconds):.2f} to {max(seconds):.2f} ({len(seconds)} times)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=at_least(1), default=10)
    parser.add_argument("--ranks", type=at_least(2), default=4)
    args = parser.parse_args()
    kills = args.kills
    recoveries, pauses, restarts = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(0, kills, 5):
            few = min(5, kills - number)
            with running(perseus(Path(folder) / f"perseus{number}", args.ranks)) as job:
                for _ in range(few):
                    recovery, pause = one_kill(job, args.ranks)
                    recoveries.append(recovery)
                    pauses.append(pause)
            with running(torchrun(Path(folder) / f"torchrun{number}", args.ranks)) as job:
                restarts += [one_restart(job, args.ranks) for _ in range(few)]
    print(described("perseus: from a kill to the next step", recoveries))
    print(described("perseus: a joiner delays the others by", pauses))
    print(described("torchrun: from a kill to the next step", restarts))
    ratio = statistics.median(restarts) / statistics.median(recoveries)
    print(f"torchrun / perseus: {ratio:.0f}")


if __name__ == "__main__":
    with ending.by_exception():
        main()
