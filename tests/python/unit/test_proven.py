"""Bytes whose sender is proven before anybody acts on them, at 1 to 4 ranks.

Ranks share memory here, so what arrives is altered in the rank that receives it, before it looks.
tests/python/hosts/test_altered_objects.py alters packets on the wire.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import RunRanks, all_well

from perseus_core import NotInitializedError, proven

BEGIN = """
import numpy as np
import perseus_core as core
from perseus_core import proven

core.init()
rank, size = core.rank(), core.size()

def room_for(data):
    return np.frombuffer(bytearray(data + bytes(proven.PROOF_BYTES)), np.uint8)

def broadcast(data, root=0, name="b", process_set=0, function="test"):
    payload = room_for(data) if rank == root else None
    return proven.Call(function, name, process_set).broadcast(payload, root).tobytes()

def allgather(data, name="g", process_set=0, function="test"):
    parts = proven.Call(function, name, process_set).allgather(room_for(data))
    return [part.tobytes() for part in parts]
"""
END = """
try:
    act()
    core.barrier()
    print("not noticed", flush=True)
except core.AbortedError as error:
    print("told:", error, flush=True)
"""

#: What has come from other ranks is changed on the last rank, in the operation of this number.
ALTER = """
real, seen = {{"broadcast": proven.Call._broadcast, "allgather": proven.Call._allgather}}, []

def change(array):
    seen.append(array.copy())
    if rank == size - 1 and len(seen) == {operation}:
        {change}

def broadcast_altered(call, array, root, name):
    sequence = real["broadcast"](call, array, root, name)
    change(array)
    return sequence

def allgather_altered(call, array, name):
    gathered, sequence = real["allgather"](call, array, name)
    gathered = gathered.copy()
    change(gathered.reshape(-1))
    return gathered, sequence

proven.Call._broadcast, proven.Call._allgather = broadcast_altered, allgather_altered
"""
ACTS = {
    "broadcast": 'def act(): broadcast(b"bytes")',
    "allgather": 'def act(): allgather(b"bytes")',
}


def run_altered(run_ranks: RunRanks, ranks: int, act: str, operation: int, change: str) -> None:
    """All ranks learn that the last one has refused what came from rank 0."""
    altered = ALTER.format(operation=operation, change=change)
    result = run_ranks(ranks, BEGIN + altered + act + END)
    assert "Traceback" not in result.stderr, result.stderr
    assert "not noticed" not in result.stdout
    told = re.findall(r"told: (?:.*?: )?(rank \d on .*)", result.stdout)
    assert len(told) == ranks, result.stdout + result.stderr
    assert len(set(told)) == 1, told
    assert re.match(rf"rank {ranks - 1} on localhost cannot go on: ", told[0]), told
    assert re.search(r"test '.': what has come from rank 0 on localhost was changed", told[0]), told


def test_each_rank_gets_the_bytes(run_ranks: RunRanks) -> None:
    script = """
for name in ("name", None):
    for data in (b"", b"x", bytes(range(256)) * 5000):
        for root in range(size):
            mine = data if rank == root else b"nothing"
            assert broadcast(mine, root, name) == data
        mine = [data * r + b"of rank %d" % r for r in range(size)]
        assert allgather(mine[rank], name) == mine
print("well", flush=True)
"""
    for ranks in (1, 2, 3, 4):
        all_well(run_ranks(ranks, BEGIN + script), ranks)


def test_a_call_takes_two_operations(run_ranks: RunRanks) -> None:
    script = """
for call in (broadcast, allgather):
    call(b"bytes")
    before = core.counters()["operations_submitted"]
    call(b"bytes")
    assert core.counters()["operations_submitted"] - before == 2
print("well", flush=True)
"""
    all_well(run_ranks(2, BEGIN + script), 2)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("act", ACTS)
def test_altered_bytes_are_refused_and_all_learn_of_it(
    run_ranks: RunRanks, act: str, ranks: int
) -> None:
    run_altered(run_ranks, ranks, ACTS[act], 2, "array[0] ^= 1")


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("act", ACTS)
def test_a_forged_length_is_refused_and_all_learn_of_it(
    run_ranks: RunRanks, act: str, ranks: int
) -> None:
    place = 6 if act == "broadcast" else 8 + 6  # its high bytes; the rank comes first
    run_altered(run_ranks, ranks, ACTS[act], 1, f"array[{place}] = 1")


def test_a_forged_rank_is_refused(run_ranks: RunRanks) -> None:
    for forged in (1, 100, 255):
        run_altered(run_ranks, 3, ACTS["allgather"], 1, f"array[:8] = {forged}")


def test_a_header_of_one_rank_is_not_taken_for_anothers(run_ranks: RunRanks) -> None:
    script = BEGIN + ALTER.format(operation=1, change="array[:32] = array[32:64]")
    result = run_ranks(3, script + ACTS["allgather"] + END)
    assert result.stdout.count("told:") == 3, result.stdout + result.stderr
    assert "not noticed" not in result.stdout


def test_a_rank_is_not_given_its_own_header_for_all_the_others(run_ranks: RunRanks) -> None:
    change = "array.reshape(size, -1)[:] = array.reshape(size, -1)[rank].copy()"
    script = BEGIN + ALTER.format(operation=1, change=change)
    result = run_ranks(3, script + ACTS["allgather"] + END)
    assert result.stdout.count("told:") == 3, result.stdout + result.stderr
    assert "not noticed" not in result.stdout


@pytest.mark.parametrize("act", ACTS)
def test_what_came_in_an_earlier_call_is_refused(run_ranks: RunRanks, act: str) -> None:
    """The bytes are the same, and so is the name. Only the call is another one."""
    twice = ACTS[act].replace("def act(): ", "def act():\n    for _ in range(2): ")
    run_altered(run_ranks, 2, twice, 4, "array[:] = seen[1].reshape(-1)")


def test_an_older_length_is_an_error_on_all_ranks(run_ranks: RunRanks) -> None:
    """It takes no more memory than that call took. The engine sees that the shapes differ."""
    script = """
def act():
    broadcast(b"bytes")
    broadcast(b"more bytes")
"""
    # Each rank finds it by itself, as the engine tells both that the shapes differ.
    altered = ALTER.format(operation=3, change="array[:] = seen[0]")
    result = run_ranks(2, BEGIN + altered + script + END)
    assert result.stdout.count("told:") == 2, result.stdout + result.stderr
    assert "the length of test 'b'" in result.stdout
    twice = """
def act():
    allgather(b"bytes")
    allgather(b"more bytes")
"""
    run_altered(run_ranks, 2, twice, 3, "array[:32] = seen[0].reshape(-1)[:32]")


def test_bytes_for_one_use_are_not_taken_for_another(run_ranks: RunRanks) -> None:
    for act in ("broadcast", "allgather"):
        script = f"""
def act():
    {act}(b"bytes", function=f"use {{rank}}")
"""
        result = run_ranks(2, BEGIN + script + END)
        assert result.stdout.count("told:") == 2, result.stdout + result.stderr


def test_a_set_has_its_own_and_a_rank_outside_gets_an_error(run_ranks: RunRanks) -> None:
    script = """
ends = core.add_process_set([0, 2])
if rank != 1:
    assert broadcast(b"x" * 1000 if rank == 2 else b"", 2, "b", ends) == b"x" * 1000
    assert allgather(b"of %d" % rank, "g", ends) == [b"of 0", b"of 2"]
else:
    for call in (broadcast, allgather):
        try:
            call(b"bytes", process_set=ends)
            print("done outside", flush=True)
        except ValueError as error:
            assert "process set" in str(error), error
assert allgather(b"all") == [b"all"] * 3
print("well", flush=True)
"""
    result = run_ranks(3, BEGIN + script)
    all_well(result, 3)
    assert "done outside" not in result.stdout


def test_elastic_training_goes_on_in_a_new_world(run_ranks: RunRanks) -> None:
    """Whoever has changed the object may be gone by then; if not, the next one is refused, too."""
    script = """
import perseus.torch.horovod as hvd
import torch
from perseus_core import proven

real, altered = proven.Call._broadcast, []

def broadcast_altered(call, array, root, name):
    sequence = real(call, array, root, name)
    if hvd.rank() == 1 and not altered:
        altered.append(array)
        array[0] ^= 1
    return sequence

@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 3):
        hvd.allreduce(torch.ones(1), name="gradient")
        state.commit()

proven.Call._broadcast = broadcast_altered
hvd.init()
train(hvd.elastic.TorchState(epoch=0))
assert len(altered) == (hvd.rank() == 1)
print("well", flush=True)
"""
    result = run_ranks(3, script)
    all_well(result, 3)
    assert "rank 1 on localhost cannot go on: the length of broadcast_object" in result.stderr


def test_before_init_it_is_an_error() -> None:
    call = proven.Call("test", "name", 0)
    for act in (lambda room: call.broadcast(room, 0), call.allgather):
        with pytest.raises(NotInitializedError):
            act(np.zeros(proven.PROOF_BYTES, np.uint8))


#: Where pickles are read: what comes is proven first, or is from the user's own process.
UNPICKLING = {
    "perseus/common/objects.py",  # each object has a proof
    "perseus/dropin/runner/common/util/wire.py",  # each message has a proof
    "perseus/dropin/runner/common/util/codec.py",  # what the caller gives
    "perseus/pipeline/checkpoint.py",  # tensors alone, from files that the caller names
    "perseus/run/raised.py",  # from a rank, by way of its agent
    "perseus/run/received.py",
    "perseus/run/task.py",  # from the agent
}


def test_pickles_are_read_only_where_they_are_proven() -> None:
    """Data that have come in an operation are not: on a plain wire, others can change them."""
    root = Path(proven.__file__).parents[1]
    reads = re.compile(r"\b(?:cloud)?pickle\.(?:loads?|Unpickler)\b|\b(?:torch|np|numpy)\.load\(")
    found = {
        str(file.relative_to(root))
        for package in ("perseus", "perseus_core")
        for file in (root / package).rglob("*.py")
        if reads.search(file.read_text())
    }
    assert found == UNPICKLING
