"""The cost to a job of strangers that scan, babble, lie, hold silent connections, and flood it.

python benchmarks/strangers.py [--ranks 2] [--rounds 8] [--flood-rate 7000] [--json FILE]

A job over TCP trains; its ranks and its launcher listen. In turns, nobody disturbs it, strangers
connect to all of its ports, or the same strangers connect to a program that drops every connection,
which shows their cost to the machine itself. Every second, all at once:

    scanner      300 connections that close at once
    babbler      100 that send 4 KiB of random bytes
    liar         50 that send a hello with a proof made with another secret
    silent       1,000 connections that are opened and send nothing

It reports milliseconds of a training step, the slowest rank's. Then jobs start, connect and train
in a flood of connections that are kept open without a word; see contest/flood.py.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress

from contest import ending, flood, report
from contest.arguments import at_least
from contest.conductor import Times

PHASE_SECONDS = 5.0
#: Seconds that are not measured, while strangers come and go.
SETTLING_SECONDS = 1.0
SILENT = 1000
RATES = {"scan": 300, "babble": 100, "lie": 50}
QUIET, AGAINST_JOB, AGAINST_OTHERS = "undisturbed", "strangers at the job", "strangers elsewhere"

JOB = """
import json, os, time, numpy, perseus_core as core
core.init()
print("@" + json.dumps({"pid": os.getpid()}), flush=True)
gradients = [numpy.ones(64 << 10, numpy.float32) for _ in range(20)]
while True:
    began = time.monotonic()
    handles = []
    for i, one in enumerate(gradients):
        time.sleep(0.0005)
        handles.append(core.allreduce_async(one, core.ReduceOp.MAX, name=f"g{i}", out=one))
    for handle in handles: handle.wait()
    mine = numpy.array([time.monotonic() - began])
    slowest = core.allreduce(mine, core.ReduceOp.MAX, name="slowest")[0]
    if core.rank() == 0: print("@" + json.dumps({"at": began, "s": slowest}), flush=True)
"""


class Strangers:
    """All strangers, in a process of their own, until stopped."""

    def __init__(self, ports: list[int]) -> None:
        command = [sys.executable, __file__, "--strangers", *map(str, ports)]
        self._process = subprocess.Popen(command, preexec_fn=ending.with_parent)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def disturb(ports: list[int]) -> None:
    """The body of Strangers' process."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    held = [reach(ports[i % len(ports)]) for i in range(SILENT)]
    due = dict.fromkeys(RATES, time.monotonic())
    turn = 0
    while held:  # for ever
        now = time.monotonic()
        for kind, rate in RATES.items():
            if now < due[kind]:
                continue
            due[kind] = max(due[kind] + 1 / rate, now - 0.1)
            turn += 1
            connection = reach(ports[turn % len(ports)])
            if connection is None:
                continue
            with connection, suppress(OSError):
                if kind == "babble":
                    connection.send(secrets.token_bytes(4096))
                if kind == "lie":
                    connection.send(secrets.choice((lie_to_rank, lie_to_launcher))())
        time.sleep(max(0.0, min(due.values()) - time.monotonic()))


def lie_to_rank() -> bytes:
    """Returns an Introduction of csrc/transport/handshake.h, with a proof without the secret."""
    of_job, nonce, called, proof = (secrets.token_bytes(count) for count in (16, 16, 32, 32))
    return of_job + nonce + called + struct.pack("<2I4H", 1, 0, 1, 0, 5, 0) + proof


def lie_to_launcher() -> bytes:
    """Returns a Hello frame of csrc/bootstrap/rendezvous_protocol.h, correct except for its
    proof."""
    numbers = struct.pack("<6I", 0, 1, 0, 2, 0, 0)
    body = secrets.token_bytes(32) + numbers + secrets.token_bytes(32)
    return struct.pack("<I", len(body)) + body


def reach(port: int) -> socket.socket | None:
    connection = socket.socket()
    connection.settimeout(0.2)
    try:
        connection.connect(("127.0.0.1", port))
    except OSError:
        connection.close()
        return None
    connection.setblocking(False)
    return connection


class TrainingJob:
    """A job that trains until it is closed."""

    def __init__(self, ranks: int) -> None:
        command = [
            sys.executable,
            "-m",
            "perseus.run",
            "-np",
            str(ranks),
            sys.executable,
            "-c",
            JOB,
        ]
        # On loopback the strangers here can reach both ranks and rendezvous.
        environment = {
            **os.environ,
            "PERSEUS_TRANSPORT": "tcp",
            "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, preexec_fn=ending.with_parent
        )
        assert self._process.stdout
        os.set_blocking(self._process.stdout.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._rest = b""
        pids: list[int] = []
        while len(pids) < ranks:
            pids += [said["pid"] for said in self.listen(1.0) if "pid" in said]
        self.ports = flood.listening([self._process.pid, *pids])

    def listen(self, seconds: float) -> list[dict]:
        """Returns what the ranks report in that time."""
        said, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._selector.select(left):
                continue
            data = self._process.stdout.read()  # type: ignore[union-attr]
            if data == b"":
                raise RuntimeError("the job has ended: it was to train on, whoever disturbs it")
            *lines, self._rest = (self._rest + (data or b"")).split(b"\n")
            said += [json.loads(line.partition(b"@")[2]) for line in lines if b"@" in line]
        return said

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def measure(ranks: int, rounds: int) -> tuple[dict[str, Times], int]:
    times = {label: Times() for label in (QUIET, AGAINST_JOB, AGAINST_OTHERS)}
    command = [sys.executable, "-c", flood.DROPPER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=ending.with_parent
    ) as dropper:
        assert dropper.stdout
        elsewhere = [int(dropper.stdout.readline())]
        job = TrainingJob(ranks)
        try:
            job.listen(2.0)
            for turn in range(rounds):
                for label in list(times)[:: 1 if turn % 2 else -1]:
                    ports = {QUIET: [], AGAINST_JOB: job.ports, AGAINST_OTHERS: elsewhere}[label]
                    strangers = Strangers(ports) if ports else None
                    job.listen(SETTLING_SECONDS)
                    steps = [one["s"] for one in job.listen(PHASE_SECONDS) if "s" in one]
                    times[label].microseconds += [1e6 * seconds for seconds in steps]
                    if strangers:
                        strangers.stop()
                    job.listen(SETTLING_SECONDS)
        finally:
            job.close()
            dropper.kill()
        return times, len(job.ports)


def main() -> None:
    if sys.argv[1:2] == ["--strangers"]:
        disturb([int(port) for port in sys.argv[2:]])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--rounds", type=at_least(1), default=8)
    parser.add_argument(
        "--flood-rate", type=at_least(1), default=7000, help="connections a second (default: 7000)"
    )
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    found = report.Report("strangers", file=args.json)
    times, ports = measure(args.ranks, 2 if args.quick else args.rounds)
    case = {"work": f"a training step, {ports} ports", "ranks": args.ranks}
    found.add(case, times)
    found.print_case(case)
    print(f"at the job against elsewhere: {flood.ratio(times, AGAINST_JOB, AGAINST_OTHERS):.3f}x")
    floods = flood.measure(args.ranks, 2 if args.quick else args.rounds, args.flood_rate)
    for work, of_work in floods.items():
        case = {"work": f"{work}, {args.flood_rate} connections a second", "ranks": args.ranks}
        found.add(case, of_work)
        found.print_case(case)
        ratio = flood.ratio(of_work, flood.AT_JOB, flood.ELSEWHERE)
        print(f"at the job against elsewhere: {ratio:.3f}x")
    found.save(finished=True)


if __name__ == "__main__":
    with ending.by_exception():
        main()
