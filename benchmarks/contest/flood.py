"""Jobs that start, connect and train in a flood of connections that strangers keep open.

A flood opens connections at a given rate and keeps the last 4,000, without a word. In turns, there
is none, it goes to the job's ports, or to a program that drops connections, which shows its cost to
the machine itself. Rank 0 is there already; the others then come, all connect in their first
allreduce, and train for a while.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contest import ending
from contest.conductor import Times

QUIET, AT_JOB, ELSEWHERE = "undisturbed", "flood at the job", "flood elsewhere"
MEETING, CONNECTING, TRAINING = "init of a late rank", "first allreduce", "a training step"
TRAINING_SECONDS = 2.0
#: Nothing that is measured takes longer, or it has failed.
PATIENCE_SECONDS = 60.0
KEPT = 4000
PROCESSES = 2

RANK = """
import json, sys, time, numpy, perseus_core as core
def wait(): sys.stdin.readline()
def tell(**what): print("@" + json.dumps(what), flush=True)
tell(ready=True)
wait()
began = time.monotonic()
core.init()
tell(s=time.monotonic() - began)
wait()
began = time.monotonic()
core.allreduce(numpy.ones(1 << 16, numpy.float32), core.ReduceOp.MAX, name="first")
tell(s=time.monotonic() - began)
gradients = [numpy.ones(64 << 10, numpy.float32) for _ in range(20)]
wait()
end, going = time.monotonic() + SECONDS, True
while going:
    began = time.monotonic()
    handles = []
    for i, one in enumerate(gradients):
        time.sleep(0.0005)
        handles.append(core.allreduce_async(one, core.ReduceOp.MAX, name=f"g{i}", out=one))
    for handle in handles: handle.wait()
    mine = numpy.array([time.monotonic() - began, began > end])
    slowest, late = core.allreduce(mine, core.ReduceOp.MAX, name="slowest")
    going = not late
    tell(s=slowest, last=not going)
"""
#: A program that takes connections and drops them, which shows what they cost the machine itself.
DROPPER = """
import socket
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
held = []
while True:
    held.append(listener.accept()[0])
    if len(held) > 256: held.pop(0).close()
"""


def measure(ranks: int, rounds: int, rate: int) -> dict[str, dict[str, Times]]:
    """Returns, for each work, the times of each label."""
    labels = (QUIET, AT_JOB, ELSEWHERE)
    found = {work: {label: Times() for label in labels} for work in (MEETING, CONNECTING, TRAINING)}
    command = [sys.executable, "-c", DROPPER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=ending.with_parent
    ) as dropper:
        assert dropper.stdout
        elsewhere = [int(dropper.stdout.readline())]
        try:
            for turn in range(rounds):
                for label in labels[:: 1 if turn % 2 else -1]:
                    for work, seconds in _sample(ranks, label, elsewhere, rate):
                        times = found[work][label]
                        if isinstance(seconds, str):
                            times.reason = seconds
                        else:
                            times.microseconds.append(1e6 * seconds)
        finally:
            dropper.kill()
    return found


def ratio(times: Mapping[str, Times], one: str, other: str) -> float:
    first, second = times[one].median, times[other].median
    return first / second if first and second else float("nan")


def _sample(
    ranks: int, label: str, elsewhere: Sequence[int], rate: int
) -> Iterator[tuple[str, float | str]]:
    """Starts one job; yields its times, or why there are none."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    work = MEETING
    with ExitStack() as stack:
        job = _Job(ranks, port)
        stack.callback(job.end)
        try:
            job.hear(range(ranks), "ready")
            job.go([0])
            while not job.ports():
                time.sleep(0.01)
            with _flood(_targets(label, job.ports(), elsewhere), rate):
                job.go(range(1, ranks))
                yield work, max(job.hear(range(1, ranks), "s"))
            job.hear([0], "s")
            work = CONNECTING
            with _flood(_targets(label, job.ports(), elsewhere), rate):
                job.go(range(ranks))
                yield work, max(job.hear(range(ranks), "s"))
                work = TRAINING
                job.go(range(ranks))
                for seconds in job.steps():
                    yield work, seconds
        except (EOFError, TimeoutError) as error:
            yield work, f"the job has failed: {error}"


def _targets(label: str, of_job: Sequence[int], elsewhere: Sequence[int]) -> Sequence[int]:
    return {QUIET: (), AT_JOB: of_job, ELSEWHERE: elsewhere}[label]


@contextmanager
def _flood(ports: Sequence[int], rate: int) -> Iterator[None]:
    if not ports:
        yield
        return
    with ExitStack() as stack:
        module = [sys.executable, "-m", "contest.flood"]
        for _ in range(PROCESSES):
            process = stack.enter_context(
                subprocess.Popen(
                    [*module, str(rate / PROCESSES), *map(str, ports)],
                    stdout=subprocess.PIPE,
                    cwd=Path(__file__).parents[1],
                    preexec_fn=ending.with_parent,
                )
            )
            stack.callback(process.kill)
            assert process.stdout
            if not process.stdout.readline():
                raise RuntimeError("the flood's process has ended")
        yield


class _Job:
    """Ranks with torchrun's variables, which do each step when they are told to."""

    def __init__(self, ranks: int, port: int) -> None:
        variables = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "PERSEUS_MASTER_PORT": str(port),
            "PERSEUS_SECRET": os.urandom(32).hex(),
            "PERSEUS_TRANSPORT": "tcp",
            "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK.replace("SECONDS", str(TRAINING_SECONDS))],
                env={**os.environ, **variables, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                preexec_fn=ending.with_parent,
            )
            for rank in range(ranks)
        ]

    def go(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            stdin = self._ranks[rank].stdin
            assert stdin
            stdin.write(b"\n")

    def hear(self, ranks: Sequence[int], what: str) -> list[float]:
        """Returns what each of the ranks says next."""
        return [self._next(rank)[what] for rank in ranks]

    def steps(self) -> Iterator[float]:
        """Yields rank 0's steps. Each holds the slowest rank's time."""
        while not (said := self._next(0))["last"]:
            yield said["s"]

    def _next(self, rank: int) -> dict[str, float]:
        stdout = self._ranks[rank].stdout
        assert stdout
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([stdout], [], [], PATIENCE_SECONDS)[0]:
                raise TimeoutError(f"rank {rank} says nothing for {PATIENCE_SECONDS:.0f} s")
            byte = stdout.read(1)
            if not byte:
                raise EOFError(f"rank {rank} has ended")
            line += byte
        said: dict[str, float] = json.loads(line.partition(b"@")[2])
        return said

    def ports(self) -> list[int]:
        return listening([rank.pid for rank in self._ranks])

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.communicate()


def listening(pids: Sequence[int]) -> list[int]:
    """Returns the TCP ports on which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports)


def pour(rate: float, ports: Sequence[int]) -> None:
    """The body of a flood's process."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = min(hard, 2 * KEPT) // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * KEPT)), hard))
    held: collections.deque[socket.socket] = collections.deque()
    # Closed by a reset, so that there are ports for the next.
    at_once = struct.pack("ii", 1, 0)
    began, made = time.monotonic(), 0
    while True:
        # If the machine is too slow for the rate, what was missed is not made up for.
        due = int((time.monotonic() - began) * rate) - made
        if due > 1000:
            began += (due - 1000) / rate
        for _ in range(min(due, 200)):
            one = socket.socket()
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            one.connect_ex(("127.0.0.1", ports[made % len(ports)]))
            made += 1
            if made == kept // 4:
                print("under way", flush=True)
            held.append(one)
            if len(held) > kept // PROCESSES:
                held.popleft().close()
        if due <= 0:
            time.sleep(0.0005)


if __name__ == "__main__":
    pour(float(sys.argv[1]), [int(port) for port in sys.argv[2:]])
