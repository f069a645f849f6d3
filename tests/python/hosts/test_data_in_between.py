"""Somebody between two hosts leaves out, holds back, adds, diverts or cuts: a clear error, soon.

It names the two ranks and their connection, and blames neither of them, whatever the wire.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from dataclasses import dataclass, field

import pytest
from frame_proxy import CONTROL, DATA, MARK, Change, Connection, Frame, proxied
from netlab import Hosts

_HEADER = struct.Struct("<IIQQQQ")  # csrc/transport/channel.h: FrameHeader
WIRES = ["plain", "authenticated", "encrypted"]
PLACES = {2: "0:1,1:1", 3: "0:2,1:1"}

SCRIPT = """
import time, numpy, perseus_core as core
core.init()
ones = numpy.ones(3000, numpy.float32)
try:
    for step in range(2000):
        began = time.monotonic()
        total = core.allreduce(ones, core.ReduceOp.SUM, name=f"gradient{step % 50}")
        assert (total == core.size()).all()
    print("done")
except core.AbortedError as error:
    print(f"aborted: {time.monotonic() - began:.1f} s:", error)
"""

#: The two ranks of different hosts, by number of ranks.
LINK = r"rank \d on 10\.86\.0\.\d"
ROUTE = r"over the connection from 10\.86\.0\.\d:\d+ to 10\.86\.0\.\d:\d+"
CHANGED = (
    rf"{LINK} has broken off with {LINK} {ROUTE}: what arrived is not what it sent: something "
    "between the hosts has changed it, added to it or left some of it out"
)
HELD_BACK = (
    rf"what {LINK} has sent to {LINK} {ROUTE} has not arrived for \d+ s \(PERSEUS_PEER_TIMEOUT\), "
    "though that rank answers over another connection: something between the hosts holds it back"
)


def check_all_are_told(hosts: Hosts, ranks: int, wire: str, change: Change, why: str) -> None:
    """Runs the script while `change` is at work, once it has begun with what it does."""
    with proxied(wire, change):
        result = hosts.run_script(
            PLACES[ranks], SCRIPT, PERSEUS_WIRE=wire, PERSEUS_PEER_TIMEOUT="4"
        )
    found = re.findall(rf"aborted: ([\d.]+) s: .*{why}", result.stdout)
    assert len(found) == ranks, result.stdout + result.stderr
    assert max(float(seconds) for seconds in found) < 8
    assert "lost rank" not in result.stdout + result.stderr


@dataclass
class Once:
    """Does something with one frame of data, in the midst of the job."""

    after: int = 5  # of the frames that have gone this way over the connection
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_done: bool = False

    def __call__(self, frame: Frame) -> bytes:
        with self.lock:
            is_it = frame.kind == DATA and not self.is_done and frame.number > self.after
            self.is_done |= is_it
        return self.change(frame) if is_it else frame.data

    def change(self, frame: Frame) -> bytes:
        raise NotImplementedError


class LeaveOut(Once):
    def change(self, frame: Frame) -> bytes:
        return b""


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("wire", WIRES)
def test_data_that_is_left_out(hosts: Hosts, wire: str, ranks: int) -> None:
    check_all_are_told(hosts, ranks, wire, LeaveOut(), CHANGED)


class Divert(Once):
    """Makes it data of another operation, of which nobody has heard."""

    def change(self, frame: Frame) -> bytes:
        (operation,) = struct.unpack_from("<Q", frame.data, 24)
        return frame.data[:24] + struct.pack("<Q", operation ^ 1 << 50) + frame.data[32:]


def test_data_whose_header_is_changed(hosts: Hosts) -> None:
    check_all_are_told(hosts, 2, "plain", Divert(), CHANGED)


class AddOfAnotherSize(Once):
    """Adds the beginning of what is to come in the next operations, as if that were short."""

    def change(self, frame: Frame) -> bytes:
        kind, _, _, _, operation, place = _HEADER.unpack_from(frame.data)
        coming = range(operation + 1, operation + 4)
        added = [_HEADER.pack(kind, 8, 8, 0, each, place) + bytes(8) for each in coming]
        return frame.data + b"".join(added)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_message_of_another_size_that_is_added(hosts: Hosts, ranks: int) -> None:
    # The message itself may come before its receive.
    found = "(?:a message of 8 bytes arrived where|frames of one message contradict each other)"
    why = rf"{LINK} has broken off with {LINK} {ROUTE}: {found}"
    check_all_are_told(hosts, ranks, "plain", AddOfAnotherSize(), why)


class Cut(Once):
    """Ends one connection of two ranks, and none of the others."""

    def change(self, frame: Frame) -> bytes:
        for end in frame.connection.ends:
            end.shutdown(socket.SHUT_RDWR)
        return b""


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("wire", WIRES)
def test_one_connection_that_is_cut(hosts: Hosts, wire: str, ranks: int) -> None:
    why = (
        rf"{LINK} has broken off with {LINK}: {ROUTE.removeprefix('over ')} has ended: .*; but "
        "that rank answers over another connection, so something between the hosts is to blame"
    )
    check_all_are_told(hosts, ranks, wire, Cut(), why)


class Freeze:
    """Keeps what comes over one connection that carries data, in the direction of that data."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.frozen: tuple[Connection, int] | None = None

    def __call__(self, frame: Frame) -> bytes:
        way = frame.connection, frame.to
        with self.lock:
            if self.frozen is None and frame.kind == DATA and frame.number > 5:
                self.frozen = way
        return b"" if self.frozen == way else frame.data


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("wire", WIRES)
def test_data_that_is_held_back(hosts: Hosts, wire: str, ranks: int) -> None:
    check_all_are_told(hosts, ranks, wire, Freeze(), HELD_BACK)


class Flood(Once):
    """Adds data of operations that do not exist."""

    def __init__(self, body: int, frames: int):
        super().__init__()
        self.body, self.frames = body, frames

    def change(self, frame: Frame) -> bytes:
        added = [
            _HEADER.pack(0x50525301, self.body, self.body, 0, 1 << 50 | number, number)
            + bytes(self.body)
            for number in range(self.frames)
        ]
        return b"".join(added) + frame.data


RESIDENT = """
import resource
print("resident:", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.parametrize(("body", "frames"), [(8, 150_000), (1 << 16, 1024)])
def test_added_data_ends_the_job_before_it_takes_much_memory(
    hosts: Hosts, body: int, frames: int
) -> None:
    most = []
    for change in (lambda frame: frame.data, Flood(body, frames)):
        with proxied("plain", change):
            result = hosts.run_script(PLACES[2], SCRIPT + RESIDENT, PERSEUS_PEER_TIMEOUT="4")
        resident = [int(mib) for mib in re.findall(r"resident: (\d+)", result.stdout)]
        assert len(resident) == 2, result.stdout + result.stderr
        most.append(max(resident))
    unproven = "more than 8 MiB of data came without a proof that it sent them"
    assert len(re.findall(f"aborted: .*{unproven}", result.stdout)) == 2, result.stdout
    assert most[1] - most[0] < 32, most


SURVIVING = """
import numpy, perseus_core as core
core.init()
worlds = 1
for step in range(500):
    try:
        core.allreduce(numpy.ones(3000, numpy.float32), name="gradient")
    except core.HorovodInternalError as error:
        print("error:", error, flush=True)
        core.shutdown()
        core.init()
        worlds += 1
        for again in range(50):
            core.allreduce(numpy.ones(3000, numpy.float32), name="gradient")
        break
print("well", core.size(), "in world", worlds, flush=True)
"""


@pytest.mark.parametrize("change", [LeaveOut(), Freeze()], ids=["left out", "held back"])
def test_no_rank_is_given_up_for_what_happens_in_between(hosts: Hosts, change: Change) -> None:
    with proxied("plain", change):
        result = hosts.run_script(
            PLACES[3], SURVIVING, options=("--min-np", "2"), PERSEUS_PEER_TIMEOUT="3"
        )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well 3 in world 2") == 3, result.stdout + result.stderr
    assert "given up on" not in result.stderr


def test_a_stall_is_not_blamed_on_a_rank_whose_data_is_held_back(hosts: Hosts) -> None:
    """The time after which a rank is given up is far shorter here than that of a silent connection.

    So nobody has asked for a mark by then: what a rank says of its waiting may not depend on that.
    """
    with proxied("plain", Freeze()):
        result = hosts.run_script(
            PLACES[2],
            SCRIPT,
            options=("--min-np", "1"),
            PERSEUS_PEER_TIMEOUT="120",
            PERSEUS_STALL_CHECK_TIME_SECONDS="1",
            PERSEUS_STALL_SHUTDOWN_TIME_SECONDS="3",
        )
    told = r"aborted: .* the ranks wait for each other: .*rank \d for data of 'allreduce.gradient"
    assert len(re.findall(told, result.stdout)) == 2, result.stdout + result.stderr
    assert "given up on" not in result.stderr
    assert re.search(r"and waits for data from rank \d", result.stderr), result.stderr


class OldLength:
    """Gives the length of the first call's object once more in the second."""

    def __init__(self) -> None:
        self.first: dict[int, bytes] = {}

    def __call__(self, frame: Frame) -> bytes:
        is_length = frame.kind == DATA and len(frame.data) == 40 + 24
        if not is_length:
            return frame.data
        length = self.first.setdefault(frame.connection.caller ^ frame.to, frame.data[40:])
        return frame.data[:40] + length


#: Each rank has another operation ready. Otherwise the lengths would go along with its ballots.
OBJECTS = """
import numpy, perseus_core as core
from perseus.common.objects import broadcast_object
from perseus.common.process_sets import global_process_set as world
core.init()
alone = core.allreduce_async(numpy.ones(1), name=f"of rank {core.rank()} alone")
for length in (1000, 3000):
    try:
        mine = "x" * length if core.rank() == 0 else None
        found = broadcast_object(mine, 0, f"state {length}", world)
        assert len(found) == length
        print("well", length)
    except core.HorovodInternalError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_older_length_of_an_object_is_not_blamed_on_the_script(hosts: Hosts, ranks: int) -> None:
    with proxied("plain", OldLength()):
        result = hosts.run_script(PLACES[ranks], OBJECTS)
    assert result.stdout.count("well 1000") == ranks, result.stdout
    told = "AbortedError .*the length of broadcast_object 'state 3000': what has come from rank 0"
    assert len(re.findall(told, result.stdout)) == ranks, result.stdout


class ForgeNames:
    """Puts code in the place of what ranks tell each other if their parameters differ."""

    CODE = b"cbuiltins\nprint\n(Vevil\ntR."  # a pickle that prints this

    def __init__(self) -> None:
        self.forged = 0

    def __call__(self, frame: Frame) -> bytes:
        if b"long_name" not in frame.data or frame.kind != DATA:
            return frame.data
        self.forged += 1
        return frame.data[:40] + self.CODE.ljust(len(frame.data) - 40, b"\0")


OPTIMIZER = """
import torch
import perseus.torch.horovod as hvd
from perseus_core import MismatchError
hvd.init()
parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
names = ["a", "b_long_name" + str(hvd.rank())]
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(parameters, 0.1), named_parameters=zip(names, parameters)
)
try:
    sum(parameters).sum().backward()
    optimizer.step()
except MismatchError as error:
    print("refused:", error)
"""


def test_forged_names_of_parameters_run_no_code(hosts: Hosts) -> None:
    forge = ForgeNames()
    with proxied("plain", forge):
        result = hosts.run_script(PLACES[2], OPTIMIZER)
    assert forge.forged == 2, result.stdout + result.stderr
    assert "evil" not in result.stdout
    told = "refused: .*something between the hosts has changed what they told each other"
    assert len(re.findall(told, result.stdout)) == 2, result.stdout + result.stderr


def test_the_other_frames_are_seen(hosts: Hosts) -> None:
    """Otherwise the tests above would show nothing."""
    seen: set[int] = set()

    def change(frame: Frame) -> bytes:
        seen.add(frame.kind)
        return frame.data

    script = SCRIPT.replace("range(2000)", "range(20)").replace("ones(3000", "ones(1 << 20")
    with proxied("plain", change):
        result = hosts.run_script(PLACES[2], script)
    assert result.stdout.count("done") == 2, result.stdout
    assert seen >= {DATA, CONTROL, MARK}
