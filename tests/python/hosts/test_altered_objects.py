"""No rank unpickles what somebody between the hosts has changed, and all ranks learn of it."""

from __future__ import annotations

import re
import struct
import sys
import threading
from collections.abc import Iterator

import cloudpickle
import pytest
from netlab import Hosts
from wiretap import Change, on_the_wire_of, whole_packets

ADAPTERS = ("torch", "tensorflow")
PLACES = {2: "0:1,1:1", 3: "0:2,1:1", 4: "0:2,1:2"}

#: An object says where it was unpickled. The one of the man in the middle is as long.
HONEST, EVIL = b"honest-object", b"evil---object"

PROGRAM = """
import numpy, perseus_core
import perseus.{adapter}.horovod as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
{alone}
try:
    {calls}
    hvd.allgather_object(0, name="after")
except Exception as error:  # TensorFlow has errors of its own
    print("aborted:", error, flush=True)
    try:
        hvd.allgather_object(0, name="after that")
    except Exception as again:
        print("again:", again, flush=True)
"""

#: While this rank has another operation ready, its ballots take no small inputs and sizes along, so
#: these are sent as large ones are.
ALONE = """
alone = perseus_core.allreduce_async(numpy.ones(1), name=f"of rank {rank} alone")
"""

BROADCAST = """
    got = hvd.broadcast_object("honest-" + "object" if rank == 0 else None, 0, name="state")
    print("unpickled", got.replace("-", "_"), flush=True)
"""
#: Each rank's object is the same, so the man in the middle changes all of them.
ALLGATHER = """
    got = hvd.allgather_object("honest-" + "object", name="states")
    print("unpickled", *(one.replace("-", "_") for one in got), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def packets(lab: None) -> Iterator[None]:
    with whole_packets(4):
        yield


def run(
    hosts: Hosts, ranks: int, adapter: str, calls: str, change: Change, alone: str = ALONE
) -> str:
    """Returns what the ranks printed; the program on host 1's wire makes this change."""
    program = hosts.folder / "program.py"
    program.write_text(PROGRAM.format(adapter=adapter, alone=alone, calls=calls.strip()))
    with on_the_wire_of(1, change):
        result = hosts.run(
            PLACES[ranks], sys.executable, str(program), timeout=120, CUDA_VISIBLE_DEVICES=""
        )
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout


def exchange(old: bytes, new: bytes) -> Change:
    assert len(new) == len(old)
    return lambda data: data.replace(old, new)


def check_all_are_told(output: str, ranks: int, what: str) -> None:
    """Of several ranks that find it at the same time, each tells what it has found itself."""
    found = rf"(rank \d on 10\.86\.0\.\d cannot go on: {what} .*)"
    assert len(re.findall(rf"aborted: .*?{found}", output)) == ranks, output
    reasons = re.findall(rf"again: .*?{found}", output)
    assert len(reasons) == ranks, output
    assert "was changed on the way, or does not come from that rank" in reasons[0]
    assert "find out what stands between the hosts" in reasons[0]
    assert "evil" not in output


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_altered_broadcast_is_refused(hosts: Hosts, adapter: str, ranks: int) -> None:
    output = run(hosts, ranks, adapter, BROADCAST, exchange(HONEST, EVIL))
    check_all_are_told(output, ranks, "broadcast_object 'state': what has come from rank 0")
    if ranks < 4:  # one of them is on the other host
        assert len(set(re.findall(r"(rank \d on \S+ cannot go on)", output))) == 1, output


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_altered_allgather_is_refused(hosts: Hosts, adapter: str, ranks: int) -> None:
    output = run(hosts, ranks, adapter, ALLGATHER, exchange(HONEST, EVIL))
    check_all_are_told(output, ranks, r"allgather_object 'states': what has come from rank \d")


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("calls", [BROADCAST, ALLGATHER])
def test_a_small_object_cannot_be_altered_on_its_way_with_the_ballots(
    hosts: Hosts, calls: str, ranks: int
) -> None:
    output = run(hosts, ranks, "torch", calls, exchange(HONEST, EVIL), alone="")
    assert len(re.findall("aborted: .*what arrived is not what it sent", output)) == ranks, output
    assert len(re.findall("again: .*what arrived is not what it sent", output)) == ranks, output
    assert "evil" not in output


def test_without_a_man_in_the_middle_nothing_is_refused(hosts: Hosts) -> None:
    output = run(hosts, 3, "torch", BROADCAST + ALLGATHER, lambda data: data)
    assert "aborted" not in output
    assert output.count("unpickled honest_object") == 6, output


# An object of so many bytes more does not fit with the agreement.
PADDING = 5000


class Replay:
    """Gives the object that came first once more in the place of the second."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.first = b""

    def __call__(self, data: bytes) -> bytes:
        at = data.find(b"-object-of-call-")
        if at < 0:
            return data
        # The pickle and the proof behind it.
        begin = data.rindex(b"\x80\x05", 0, at)
        end = at + len(b"-object-of-call-N") + PADDING + 2 + 16
        number = data[at + len(b"-object-of-call-")]
        with self.lock:
            if number == ord("1"):
                self.first = data[begin:end]
            elif number == ord("2") and self.first:
                return data[:begin] + self.first + data[end:]
        return data


def test_an_older_object_of_the_same_name_is_refused(hosts: Hosts) -> None:
    calls = """
    for call in "12":
        mine = f"the-object-of-call-{call}" + PADDING if rank == 0 else None
        got = hvd.broadcast_object(mine, 0, name="state").removesuffix(PADDING)
        print("call", call, "unpickled", got.replace("-", "_"), flush=True)
""".replace("PADDING", f"'x' * {PADDING}")
    replay = Replay()
    output = run(hosts, 2, "torch", calls, replay)
    assert replay.first
    assert output.count("call 1 unpickled the_object_of_call_1") == 2, output
    assert "call 2 unpickled the_object_of_call_1" not in output
    check_all_are_told(output, 2, "broadcast_object 'state': what has come from rank 0")


LONG = "x" * 765_432
PICKLED = len(cloudpickle.dumps(LONG))


def test_a_forged_length_takes_no_memory(hosts: Hosts) -> None:
    """The rank would fail at once if it asked for this much."""
    calls = f"""
    hvd.broadcast_object("x" * {len(LONG)} if rank == 0 else None, 0, name="long")
"""
    length = struct.pack("<q", PICKLED)
    output = run(hosts, 2, "torch", calls, exchange(length, struct.pack("<q", 1 << 46)))
    check_all_are_told(output, 2, "the length of broadcast_object 'long': what has come from rank")


def test_a_forged_number_of_rows_takes_no_memory(hosts: Hosts) -> None:
    calls = f"""
    hvd.allgather_object("x" * {len(LONG)}, name="long")
"""
    rows, forged = struct.pack("<q", PICKLED + 16), struct.pack("<q", 1 << 46)

    def change(data: bytes) -> bytes:
        """Changes what ends with this number and a tag, and no message by which engines agree."""
        return data[:-24] + forged + data[-16:] if data[-24:-16] == rows else data

    output = run(hosts, 2, "torch", calls, change)
    check_all_are_told(
        output,
        2,
        r"allgather of 'allgather\.long\.t': the number of rows that has come from rank \d",
    )
