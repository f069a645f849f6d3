"""Faults that are injected into a job, and the outcomes that they must have."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import lab

#: Holds the ports that the system would give out.
HOLDER = """
import socket, time
held = []
for port in (61000, 61001):
    one = socket.socket(socket.AF_INET6)
    one.bind(("::", port))
    one.listen()
    held.append(one)
time.sleep(600)
"""
#: For the jobs: a rank that is silent for this long is lost, as is one that does not come to init.
PEER_TIMEOUT = 3
START_TIMEOUT = 20
#: Seconds in which a job has ended because of a rank's silence: twice it may wait in init, if those
#: that are left meet anew.
SILENCE_ENDS = 2 * START_TIMEOUT + 15


@dataclass(frozen=True)
class Place:
    """A rank of a running job."""

    rank: int
    host: int
    pid: int


@dataclass
class Job:
    """The parts of a job that faults may act on."""

    ranks: Sequence[Place]
    hosts: int
    launcher: int
    random: random.Random
    #: Called at the end, whatever becomes of the job, to undo a fault.
    undo: list[Callable[[], None]] = field(default_factory=list)

    @property
    def all_ranks(self) -> list[int]:
        return [place.rank for place in self.ranks]

    def victim(self) -> Place:
        return self.random.choice(self.ranks)


@dataclass(frozen=True)
class Expected:
    """The outcomes that are allowed for a job.

    well: all ranks end well, with correct results. error: the others' errors name one of these
    ranks; None: it must not fail. hurt: ranks that need not live to report an outcome; all others
    must. short: ranks that lack a resource, and may end with a Python exception. within: seconds
    from the fault until the job has ended.
    """

    well: bool
    error: frozenset[int] | None
    hurt: frozenset[int] = frozenset()
    short: frozenset[int] = frozenset()
    within: float = 30


WELL = Expected(well=True, error=None)


def lost(*ranks: int, within: float = 15) -> Expected:
    return Expected(well=False, error=frozenset(ranks), hurt=frozenset(ranks), within=within)


def short_or_well(rank: int) -> Expected:
    return Expected(well=True, error=frozenset([rank]), short=frozenset([rank]))


def kill(job: Job) -> Expected:
    victim = job.victim()
    _signal(victim.pid, signal.SIGKILL)
    return lost(victim.rank)


def terminate(job: Job) -> Expected:
    victim = job.victim()
    _signal(victim.pid, signal.SIGTERM)
    return lost(victim.rank)


def kill_two(job: Job) -> Expected:
    first, second = job.random.sample(list(job.ranks), 2)
    _signal(first.pid, signal.SIGKILL)
    time.sleep(job.random.choice([0, 0.01, 0.1]))
    _signal(second.pid, signal.SIGKILL)
    return lost(first.rank, second.rank)


def interrupt(job: Job) -> Expected:
    victim = job.victim()
    for _ in range(job.random.randrange(1, 100)):
        _signal(victim.pid, signal.SIGINT)
        time.sleep(job.random.expovariate(100))
    return WELL


def stop_for_a_moment(job: Job) -> Expected:
    victim = job.victim()
    _signal(victim.pid, signal.SIGSTOP)
    time.sleep(job.random.uniform(0.05, PEER_TIMEOUT / 3))
    _signal(victim.pid, signal.SIGCONT)
    return WELL


def stop_for_good(job: Job) -> Expected:
    victim = job.victim()
    _signal(victim.pid, signal.SIGSTOP)
    job.undo.append(lambda: _signal(victim.pid, signal.SIGCONT))
    return lost(victim.rank, within=SILENCE_ENDS)


def kill_the_launcher(job: Job) -> Expected:
    _signal(job.launcher, signal.SIGKILL)
    everyone = frozenset(job.all_ranks)
    return Expected(well=True, error=everyone, hurt=everyone)


def fill_shm(job: Job) -> Expected:
    """Fills the job's own /dev/shm, which is removed with the job."""
    ballast = Path(f"/proc/{job.launcher}/root/dev/shm/ballast")
    with suppress(FileNotFoundError), ballast.open("wb", buffering=0) as file:
        while _writes(file, bytes(1 << 20)):
            pass
    return WELL


def _writes(file: BinaryIO, data: bytes) -> bool:
    try:
        return file.write(data) == len(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


def take_all_ports(job: Job) -> Expected:
    """After it, no process on the host can listen, or connect to others."""
    host = job.random.randrange(job.hosts)
    path = "net.ipv4.ip_local_port_range"
    _at(host, "sysctl", "-qw", f"{path}=61000 61001")
    holder = subprocess.Popen(
        ["ip", "netns", "exec", lab.name_of(host), sys.executable, "-c", HOLDER]
    )

    def undo() -> None:
        holder.kill()
        holder.wait()
        _at(host, "sysctl", "-qw", f"{path}=32768 60999")

    job.undo.append(undo)
    return Expected(well=True, error=frozenset(job.all_ranks))


def cut_a_host_off(job: Job) -> Expected:
    host = job.random.randrange(job.hosts)
    lab.netlab("unplug", host)
    job.undo.append(lambda: lab.netlab("plug", host))
    # To those on the host, the others are lost.
    return Expected(well=False, error=frozenset(job.all_ranks), within=SILENCE_ENDS)


def cut_a_host_off_and_go_on(job: Job) -> Expected:
    """The ranks that reach the launcher's host, 0, go on. That host is not cut off: output of ranks
    elsewhere would still reach the launcher, because it does not go over the network here."""
    host = job.random.randrange(1, job.hosts)
    lab.netlab("unplug", host)
    job.undo.append(lambda: lab.netlab("plug", host))
    cut_off = [place.rank for place in job.ranks if place.host == host]
    return lost(*cut_off, within=SILENCE_ENDS)


def cut_a_host_off_for_a_moment(job: Job) -> Expected:
    host = job.random.randrange(job.hosts)
    lab.netlab("unplug", host)
    time.sleep(job.random.uniform(0.05, 0.45 * PEER_TIMEOUT))
    lab.netlab("plug", host)
    return WELL


def slow_a_host_down(job: Job) -> Expected:
    host = job.random.randrange(job.hosts)
    rate = job.random.choice(["20mbit", "100mbit"])
    _at(host, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate)
    undo = ("tc", "qdisc", "del", "dev", "eth0", "root")
    job.undo.append(lambda: _at(host, *undo))
    time.sleep(job.random.uniform(0.2, 1))
    _at(host, *undo)
    job.undo.pop()
    return WELL


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _at(host: int, *command: str) -> None:
    command = ("ip", "netns", "exec", lab.name_of(host), *command)
    subprocess.run(command, check=False, capture_output=True)
