"""A run of the elastic campaign: a job, what happens to it, and how it must end."""

from __future__ import annotations

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
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import lab
import leftovers

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "python/hosts"))

from sshd import PORT, SshHosts  # noqa: E402 (the folder is not on the path before)

TAGGED = re.compile(r"\[(\d+)\]<stdout>:(\{.*\})\s*$")
CRASHED = re.compile(r"terminate called|Fatal Python error|Traceback \(most recent call last\)")
#: The slots of each host at the start.
ONE_MACHINE = {"localhost": 2, "127.0.0.1": 2}
SEVERAL_HOSTS = {"a": 2, "b": 1, "c": 1}
PEER_TIMEOUT = 3
START_TIMEOUT = 6
#: A job in which nothing happens takes a fifth of this; where hosts are lost, a tenth.
LONGEST, LONGEST_OVER_HOSTS = 45.0, 90.0
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
    slots: dict[str, int]  # of each host at the start
    is_over_hosts: bool  # whether these are hosts of their own, and not all this machine
    problems: list[str] = field(default_factory=list)
    seconds: float = 0
    outcome: str = ""

    def text(self) -> str:
        told = ", ".join(f"{event.name} {event.moment:.2f} s" for event in self.events)
        where = "over hosts: " if self.is_over_hosts else ""
        return f"{self.number:4} {where}{told or 'nothing happens'}"

    @property
    def spared_place(self) -> tuple[str, int]:
        """The host of the rank that is not hurt, and the number of its slot there."""
        places = [(host, slot) for host, count in self.slots.items() for slot in range(count)]
        return places[self.spared]

    @property
    def longest(self) -> float:
        return LONGEST_OVER_HOSTS if self.is_over_hosts else LONGEST


class Job:
    """A running job, as far as the events need it."""

    def __init__(self, run: Run, folder: Path, mark: str, ssh: SshHosts | None) -> None:
        self.run = run
        self.chance = random.Random(f"{run.seed}/{run.number}/events")
        self.output: list[str] = []
        self.said: list[dict[str, Any]] = []
        self.undo: list[tuple[float, Callable[[], object]]] = []
        self.launcher_is_killed = False
        self._hosts = folder / "hosts"
        self.slots = dict(run.slots)
        self.list_hosts()
        job = [sys.executable, str(HERE / "elastic_job.py")]
        job += ["--step-seconds", str(STEP_SECONDS), "--commit-every", str(run.commit_every)]
        launcher = [sys.executable, "-m", "perseus.run", "-np", "4", "--min-np", "1"]
        launcher += ["--host-discovery-script", f"cat {self._hosts}", "--verbose", *run.flags]
        # Where a host is cut off, its agent would wait for another launcher after the job's end.
        ends = run.is_over_hosts or any(event.name in LAST_EVENTS for event in run.events)
        self._environment = {
            **os.environ,
            **(ssh.environment if ssh else {}),
            leftovers.MARK: mark,
            "PERSEUS_PEER_TIMEOUT": str(PEER_TIMEOUT),
            "OMP_NUM_THREADS": "1",
            "PERSEUSRUN_IF_KILLED": "end" if ends else "go-on",
        }
        self._at_launchers_host: list[str] = []
        if ssh is not None:
            launcher += ["--ssh-port", str(PORT), "--ssh-identity-file", str(ssh.folder / "key")]
            self._at_launchers_host = list(ssh.at_host_0)
            self._environment["PERSEUS_START_TIMEOUT"] = str(START_TIMEOUT)
        self._selector = selectors.DefaultSelector()
        self.process = self._launch([*launcher, *job])
        self._number = self.process.pid

    def _launch(self, command: list[str]) -> subprocess.Popen[str]:
        launcher = subprocess.Popen(
            [*self._at_launchers_host, *command],
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
        host = self.chance.choice(self._other_hosts())
        command = [sys.executable, "-m", "perseus.run", "--drain", host]
        job = ["--job", str(self._number)]
        drain = subprocess.Popen(
            [*command, *job], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.undo.append((time.monotonic() + 5, drain.wait))

    def add_a_slot(self) -> None:
        self.slots[self.chance.choice(list(self.slots))] += 1
        self.list_hosts()

    def take_a_slot(self) -> None:
        host = self.chance.choice(list(self.slots))
        # The slot of the rank that is spared stays, with those before it.
        spared_host, spared_slot = self.run.spared_place
        least = spared_slot + 1 if host == spared_host else 0
        self.slots[host] = max(least, self.slots[host] - 1)
        self.list_hosts()

    def lists_nonsense(self) -> None:
        self._hosts.write_text(f"{next(iter(self.slots))}:many\n")
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

    def cut_a_host_off(self) -> None:
        self._unplug(self.chance.choice([inf, self.chance.uniform(1, 4 * PEER_TIMEOUT)]))

    def cut_a_host_off_for_a_moment(self) -> None:
        self._unplug(self.chance.uniform(0.05, 0.45 * PEER_TIMEOUT))

    def cut_the_power(self) -> None:
        for process in lab.processes_on(self._number_of_another_host()):
            _signal(process, signal.SIGKILL)

    def preempt_a_host(self) -> None:
        """Does what a batch system does that takes a host back: its ranks leave."""
        for process in lab.processes_on(self._number_of_another_host()):
            with suppress(FileNotFoundError, ProcessLookupError):
                command = Path(f"/proc/{process}/cmdline").read_bytes()
                if b"/agent.py" in command or b"/elastic_job.py" in command:
                    os.kill(process, signal.SIGTERM)

    def _unplug(self, seconds: float) -> None:
        number = self._number_of_another_host()
        lab.netlab("unplug", number)
        self.undo.append((time.monotonic() + seconds, lambda: lab.netlab("plug", number)))

    def _number_of_another_host(self) -> int:
        """Draws a host that may be lost: the first one is the launcher's."""
        return list(self.slots).index(self.chance.choice(self._other_hosts()))

    def _other_hosts(self) -> list[str]:
        return [host for host in self.slots if host != self.run.spared_place[0]]

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
        deadline = time.monotonic() + self.run.longest
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
            late = "after its training function had returned"
            has_failed_late = any(late in line for line in self.output)  # nobody can replace it
            if self.process.returncode != 0 and not has_failed_late:
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
}
EVENTS_ON_ONE_MACHINE: dict[str, Callable[[Job], None]] = {
    "the launcher is killed, and the job resumed": Job.kill_and_resume,
}
EVENTS_OVER_HOSTS: dict[str, Callable[[Job], None]] = {
    "a host is cut off": Job.cut_a_host_off,
    "a host is cut off for a moment": Job.cut_a_host_off_for_a_moment,
    "a host loses its power": Job.cut_the_power,
    "a host is preempted": Job.preempt_a_host,
}
LAST_EVENTS: dict[str, Callable[[Job], None]] = {"the launcher is killed": Job.kill_the_launcher}


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
