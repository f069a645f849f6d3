"""Jobs whose ranks are killed and come back, under Perseus and its peers.

Each rank trains for ever, and writes down each step that it has done.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from contest.lab import Lab

__all__ = [
    "CALM_SECONDS",
    "CONTENDERS",
    "Contender",
    "Entry",
    "Job",
    "LostJobError",
    "Step",
    "perseus",
    "perseus_job",
    "perseus_over_hosts",
    "running",
]

WORKS = Path(__file__).parent / "works"
PEERS = Path(__file__).resolve().parents[2] / "build/peers/bin"
#: Seconds of training between a kill and what came before it.
CALM_SECONDS = 1.0
EVENT_SECONDS = 60.0


class LostJobError(Exception):
    """A job has not gone on after a kill; the message has its last output."""


@dataclass(frozen=True)
class Step:
    moment: float  # seconds of time.monotonic, which all processes of a host share
    size: int  # of the world
    number: int = 0  # how many were done before, for those who count them


@dataclass(frozen=True)
class Entry:
    """How a process began to train in a world, in seconds."""

    moment: float
    waited: float  # since it was about to train
    synced: float  # of these, while the state was moved and saved


@dataclass
class Job:
    folder: Path  # where the ranks write: PID.steps
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        environment = {**os.environ, "STEPS_FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                self.command,
                env={**environment, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ends it with all of its processes, which torchrun's ranks are in groups of their own."""
        ranks = list(self.steps())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def steps(self) -> dict[int, list[Step]]:
        """Returns the steps of each process that lives, by its number."""
        found = {}
        for file in self.folder.glob("*.steps"):
            pid = int(file.stem)
            if not Path(f"/proc/{pid}/exe").exists():
                continue
            lines = file.read_text().split("\n")[:-1]
            found[pid] = [
                Step(float(moment), *map(int, counts)) for moment, *counts in map(str.split, lines)
            ]
        return found

    def entries(self, pid: int) -> list[Entry]:
        """Returns how a rank of Perseus began to train, in each world."""
        lines = (self.folder / f"{pid}.entered").read_text().splitlines()
        return [Entry(*map(float, line.split())) for line in lines]

    def wait_for(self, size: int, since: float, ranks: int) -> dict[int, Step]:
        """Returns the first step after `since`, in a world of this size, of so many processes."""
        deadline = time.monotonic() + EVENT_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.fail("the job has ended")
            first = {}
            for pid, steps in self.steps().items():
                after = [s for s in steps[-5000:] if s.moment > since and s.size == size]
                if after:
                    first[pid] = after[0]
            if len(first) >= ranks:
                return first
            time.sleep(0.02)
        self.fail(f"no {ranks} ranks have done a step in a world of {size}")

    def wait_for_end_of(self, pid: int) -> None:
        """Waits until a rank's process has ended."""
        deadline = time.monotonic() + EVENT_SECONDS
        while pid in self.steps():
            if time.monotonic() > deadline:
                self.fail(f"process {pid} has not ended")
            time.sleep(0.1)

    def fail(self, why: str) -> NoReturn:
        last = (self.folder / "output").read_text(errors="replace").splitlines()[-20:]
        raise LostJobError("\n".join([*last, f"{why}: {' '.join(self.command)}"]))

    def kill_one(self) -> float:
        """Kills a rank that has done a step; returns when."""
        return self.kill(random.choice([pid for pid, steps in self.steps().items() if steps]))

    def signal(self, number: int) -> None:
        """Sends a signal to all ranks that have done a step."""
        for pid in self.steps():
            os.kill(pid, number)

    def kill(self, pid: int) -> float:
        """Kills a rank; returns when."""
        now = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return now


@contextlib.contextmanager
def running(job: Job) -> Iterator[Job]:
    job.folder.mkdir(exist_ok=True)
    job.start()
    try:
        yield job
    finally:
        job.stop()


@dataclass(frozen=True)
class Contender:
    """Trains with so many ranks in a folder; each that is killed is replaced soon.

    needs: a file that is there if it can run.
    restarts: whether all ranks start again after a kill, in place of going on with fewer.
    """

    make: Callable[[Path, int], Job]
    needs: Path = Path(sys.executable)
    restarts: bool = False

    def unavailable(self) -> str | None:
        """Returns why it cannot run here; None if it can."""
        return None if self.needs.exists() else f"needs {self.needs}; run `make peers`"


def perseus(folder: Path, ranks: int, *options: str) -> Job:
    """`options` are those of works/elastic_training.py."""
    flags = ["--min-np", "1", "--max-np", str(ranks), "-H", f"localhost:{ranks}"]
    flags += ["--blacklist-by", "slot", "--blacklist-cooldown-range", "1", "1"]
    return perseus_job(folder, ranks, flags, *options)


def perseus_over_hosts(folder: Path, lab: Lab, hosts: Path, ranks: int, *options: str) -> Job:
    """The same with a rank on each host that a file names; the launcher is on the first."""
    flags = ["--min-np", "1", "--max-np", str(lab.hosts), "--watch-hostfile", str(hosts)]
    job = perseus_job(folder, ranks, flags, *options)
    return Job(folder, lab.at(0, *job.command), lab.environment)


def perseus_job(folder: Path, ranks: int, flags: Sequence[str], *options: str) -> Job:
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks), *flags]
    program = [sys.executable, str(WORKS / "elastic_training.py"), "perseus.torch.horovod"]
    return Job(folder, [*launcher, *program, *options])


def _horovod(folder: Path, ranks: int) -> Job:
    """Horovod leaves out the host of a killed rank, so each rank is on a host of its own."""
    folder.mkdir(exist_ok=True)
    names = ["localhost", "127.0.0.1", socket.gethostname(), _own_address()]
    script = folder / "hosts.sh"
    if ranks > len(names):
        sys.exit(f"this machine has {len(names)} names, so Horovod has at most as many ranks")
    script.write_text("#!/bin/sh\n" + "".join(f"echo {name}:1\n" for name in names[:ranks]))
    script.chmod(0o755)
    launcher = [str(PEERS / "horovodrun"), "--gloo", "-np", str(ranks), "--min-np", "1"]
    launcher += ["--max-np", str(ranks), "--host-discovery-script", str(script)]
    launcher += ["--blacklist-cooldown-range", "1", "2"]
    program = [str(PEERS / "python"), str(WORKS / "elastic_training.py"), "horovod.torch"]
    return Job(folder, [*launcher, *program])


def _own_address() -> str:
    """Returns an address of this machine other than the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing
        return str(probe.getsockname()[0])


def _torchrun(folder: Path, ranks: int) -> Job:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(ranks), "--max-restarts", "1000"]
    # Otherwise, with PyTorch 2.13, ranks that start again find the addresses of those that have
    # ended, and never meet.
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return Job(folder, [*launcher, str(WORKS / "restarted_training.py")], environment)


def _torchft(folder: Path, ranks: int) -> Job:
    return Job(folder, [str(PEERS / "python"), str(WORKS / "torchft_job.py"), str(ranks)])


CONTENDERS = {
    "perseus": Contender(perseus),
    "horovod": Contender(_horovod, PEERS / "horovodrun"),
    "torchft": Contender(_torchft, PEERS / "torchft_lighthouse"),
    "torchrun": Contender(_torchrun, restarts=True),
}
