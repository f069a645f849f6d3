"""Hosts that are network namespaces of this machine, with capped links: see scripts/netlab.sh.

It has these properties of a cloud's network: a cap on what a host sends, and on what each of its
connections sends. It lacks others: latency (0.1 ms between hosts), loss, and a processor for each
host; all hosts share this machine's.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from contest import ending

NETLAB = Path(__file__).parents[2] / "scripts/netlab.sh"
PLAIN_SOCKETS = Path(__file__).with_name("plain_sockets.py")
#: A separate lab, so that tests can use theirs at the same time.
NAME = "contest"
#: A cap counts frames: in each 1,514 bytes, 66 are headers of Ethernet, IP and TCP (timestamps).
PAYLOAD_OF_A_FRAME = 1448 / 1514


@dataclass(frozen=True)
class Connection:
    """An established connection, as its host sees it."""

    port: int
    peer: str
    peer_port: int
    bytes_sent: int
    pids: frozenset[int]


#: Connections of plain sockets between two hosts that are enough to fill a link.
FILLING = 8


@dataclass(frozen=True)
class Capacity:
    """Mbit/s of payload that each host can send, all at once.

    sockets: what plain sockets move; cap: what the link's cap leaves for payload.
    """

    sockets: float
    cap: float

    @property
    def limit(self) -> float:
        return max(self.sockets, self.cap)

    def __repr__(self) -> str:
        return f"plain sockets move {self.sockets:.0f} Mbit/s, the cap leaves {self.cap:.0f}"


@dataclass(frozen=True)
class Lab:
    """A lab of `hosts` hosts; caps are in Mbit/s, or None for no cap. Use `open_lab`."""

    hosts: int
    link_mbit: int | None = None
    flow_mbit: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Returns what perseusrun and netlab.sh need to find the hosts."""
        return {"NETLAB": NAME, "PERSEUSRUN_RSH": f"{NETLAB} rsh"}

    def address(self, host: int) -> str:
        return f"10.86.0.{host + 1}"

    def at(self, host: int, *command: str) -> list[str]:
        """Returns the command line that runs a command on a host; it stays one process."""
        return ["env", f"NETLAB={NAME}", str(NETLAB), "at", str(host), *command]

    def netlab(self, *arguments: object) -> None:
        subprocess.run(
            [str(NETLAB), *map(str, arguments)], env=os.environ | self.environment, check=True
        )

    def plain_sockets(
        self, connections: int, *, senders: str = "connecting", seconds: float = 2
    ) -> list[float]:
        """Returns Mbit/s that a host gets from the previous one while all send, in each window.

        These are the host's with the best median. A congestion control pauses at times, to probe:
        such a window says nothing about the link, and the median ignores it. `connections` is their
        number between two hosts. With "accepting", the side that accepted a connection sends.
        """
        jobs = [self._plain_sockets(host, connections, senders, seconds) for host in self._all]
        outputs = [job.communicate(timeout=60 + seconds)[0] for job in jobs]
        if any(job.returncode for job in jobs):
            raise RuntimeError("plain sockets could not be measured; see above")
        found = [[float(word) for word in line.split()] for line in outputs]
        return max(found, key=statistics.median)

    def payload_mbit(self) -> float | None:
        """Returns what the cap of a host's link leaves for payload: the most any program can
        move."""
        return None if self.link_mbit is None else self.link_mbit * PAYLOAD_OF_A_FRAME

    def capacity(self, seconds: float) -> Capacity:
        """Measures plain sockets for so long."""
        windows = self.plain_sockets(FILLING, seconds=seconds)
        return Capacity(statistics.median(windows), self.payload_mbit() or 0.0)

    def connections(self, host: int, pids: Collection[int] | None = None) -> list[Connection]:
        """Returns a host's connections, only of these processes if given; most bytes sent first."""
        shown = subprocess.run(
            self.at(host, "ss", "-HOtinp", "state", "established"),
            capture_output=True,
            text=True,
            check=True,
        )
        found = parse_connections(shown.stdout)
        if pids is not None:
            found = [one for one in found if one.pids & set(pids)]
        return sorted(found, key=lambda one: -one.bytes_sent)

    @contextmanager
    def slowed(self, slow: Sequence[tuple[int, Connection]], mbit: float) -> Iterator[None]:
        """Within the block, caps these connections, at most one on each host, to `mbit`."""
        done = []
        try:
            for host, connection in slow:
                self.netlab("slow", host, connection.port, connection.peer_port, mbit)
                done.append(host)
            yield
        finally:
            for host in done:
                self.netlab("unslow", host)

    @property
    def _all(self) -> range:
        return range(self.hosts)

    def _plain_sockets(
        self, host: int, connections: int, senders: str, seconds: float
    ) -> subprocess.Popen[str]:
        own, following = self.address(host), self.address((host + 1) % self.hosts)
        command = [sys.executable, str(PLAIN_SOCKETS), own, following, "--senders", senders]
        command += ["--connections", str(connections), "--seconds", str(seconds)]
        return subprocess.Popen(self.at(host, *command), stdout=subprocess.PIPE, text=True)


def parse_connections(text: str) -> list[Connection]:
    """Parses the lines of `ss -HOtinp`; keeps only connections to other hosts."""
    found = []
    for line in text.splitlines():
        ends = re.search(r"([\d.]+):(\d+)\s+([\d.]+):(\d+)\s", line)
        if ends is None or ends[1] == ends[3]:
            continue
        sent = re.search(r"\bbytes_sent:(\d+)", line)
        pids = frozenset(map(int, re.findall(r"\bpid=(\d+)", line)))
        found.append(
            Connection(int(ends[2]), ends[3], int(ends[4]), int(sent[1]) if sent else 0, pids)
        )
    return found


def why_not() -> str | None:
    """Returns why this machine cannot have a lab, or None."""
    probe = ["ip", "netns", "add", f"{NAME}-probe"]
    try:
        allowed = subprocess.run(probe, capture_output=True, text=True)
    except FileNotFoundError:
        return "the program ip (package iproute2) is missing"
    if allowed.returncode != 0:
        return f"network namespaces are not allowed here: {allowed.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", f"{NAME}-probe"], check=True)
    return None


def end_all() -> None:
    """Kills what runs on the hosts: a removed namespace lives on below its processes."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for name in re.findall(rf"^{NAME}\d+\b", listed.stdout, re.MULTILINE):
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        for pid in map(int, pids.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def open_lab(
    hosts: int, link_mbit: int | None = None, flow_mbit: int | None = None
) -> Iterator[Lab]:
    """Opens a lab for the duration of the block. Only one can exist at a time."""
    lab = Lab(hosts, link_mbit, flow_mbit)
    caps = [cap for cap in (link_mbit, flow_mbit) if cap is not None]
    with ending.by_exception():
        _remove(lab)  # left by a run that was killed
        try:
            lab.netlab("up", hosts, *caps)
            yield lab
        finally:
            _remove(lab)


def _remove(lab: Lab) -> None:
    with ending.held_back():
        end_all()
        lab.netlab("down")
