"""perseus.run.run with large arguments and results: what they cost in time and in memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from perseus.run.received import Received

#: Calls a function with this many bytes, or has it return them; prints what the call has cost.
MEASURED = """
import json, resource, sys
import perseus.run
what, size = sys.argv[1], int(sys.argv[2])
def processor_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
def kilobytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
given = b"y" * size if what == "argument" else size
before = processor_seconds(), kilobytes()
if what == "argument":
    assert perseus.run.run(len, (given,)) == [size]
else:
    assert len(perseus.run.run(bytes, (given,))[0]) == size
print(json.dumps([processor_seconds() - before[0], (kilobytes() - before[1]) * 1024]))
"""


def cost(what: str, size: int) -> tuple[float, int]:
    """Returns the processor seconds of all processes, and by how many bytes the launcher grew."""
    command = [sys.executable, "-c", MEASURED, what, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seconds, grown = json.loads(done.stdout)
    return seconds, grown


# An argument is in memory already, so its pickled form is the second copy.
@pytest.mark.parametrize(("what", "copies"), [("argument", 1), ("result", 2)])
def test_time_and_memory_grow_no_faster_than_what_is_sent(what: str, copies: int) -> None:
    small, large = 32_000_000, 128_000_000
    (once, _), (four_times, grown) = cost(what, small), cost(what, large)
    assert four_times < 8 * once  # 16 times as much if it were quadratic
    assert grown < copies * large + (64 << 20)


@pytest.mark.parametrize("size", [0, 1, 65536, (16 << 20) - 40, 16 << 20, 40_000_000])
def test_what_is_received_in_pieces_is_unpickled_whole(size: int) -> None:
    import pickle

    sent = pickle.dumps((bytes(range(256)) * (size // 256 + 1), "end"))
    received = Received()
    assert not received
    for begin in range(0, len(sent), 65535):
        received.append(sent[begin : begin + 65535])
    assert received
    assert received.unpickle() == pickle.loads(sent)
