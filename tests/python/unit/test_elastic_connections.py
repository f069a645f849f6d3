"""After a death, the ranks that are left keep their connections and their shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from elastic_programs import ELASTIC

#: Trains with all of its peers to the step STEPS, and prints in each world, once it has used all of
#: its connections: its size, how many were made and kept, and the program's rank at its start.
#: EVENTS are steps at which a rank dies: "10:1 20:2".
TRAINING = (
    ELASTIC
    + """
import signal

steps, started_as = int(os.environ["STEPS"]), os.environ["PERSEUS_RANK"]
deaths = dict(event.split(":") for event in os.environ["EVENTS"].split())

def exchange(number):
    # Each rank sends a part to each other one.
    rank, size = core.rank(), core.size()
    mine = np.repeat(np.arange(size) + 100.0 * rank + number, 5000)
    parts, _ = core.alltoall(mine, name="parts")
    expected = np.repeat(100.0 * np.arange(size) + rank + number, 5000)
    assert (parts == expected).all(), (parts, expected)

core.init()
state = ObjectState(broadcast, core.rank, step=0, value=0.0)

def train(state):
    is_first = True
    while is_first or state.step < steps or (size_at_end and core.size() != size_at_end):
        if deaths.get(str(state.step)) == started_as:
            os.kill(os.getpid(), signal.SIGKILL)
        exchange(state.step)
        mean = core.allreduce(np.full(300_000, state.value + 1), name="step")
        assert (mean == state.value + 1).all()
        state.value, state.step = float(mean[0]), state.step + 1
        if is_first:
            is_first = False
            found = core.counters()
            made, kept = found["connections_made"], found["connections_kept"]
            print("world", core.size(), made, kept, started_as, flush=True)
        state.commit()

size_at_end = int(os.environ["SIZE_AT_END"])
run_fn(train, reset)(state)
assert state.value == state.step, (state.value, state.step)
print("well", flush=True)
core.shutdown()
"""
)

#: Connections to one peer: over TCP, two for data and the express one.
TRANSPORTS = {"shm": 1, "tcp": 3}

ELASTIC = ["--max-np", "4", "--blacklist-by", "slot"]


def run(
    folder: Path, transport: str, ranks: int, events: str, flags: Sequence[str] = (), **more: str
) -> list[tuple[int, int, int, str]]:
    """Returns what each rank has printed of each world; the job ends well."""
    program = folder / "train.py"
    program.write_text(TRAINING)
    environment = {
        **os.environ,
        "PERSEUS_TRANSPORT": transport,
        "PERSEUS_ALLREDUCE_STREAMS": "2",
        "EVENTS": events,
        "STEPS": "40",
        "SIZE_AT_END": "0",
        **more,
    }
    command = [sys.executable, "-m", "perseus.run", "-np", str(ranks), "--min-np", "2"]
    command += ["-H", f"localhost:{ranks}", *flags]
    result = subprocess.run(
        [*command, sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.partition(">:")[2].split() for line in result.stdout.splitlines()]
    worlds = [line[1:] for line in lines if line[:1] == ["world"]]
    return [(int(size), int(made), int(kept), who) for size, made, kept, who in worlds]


@pytest.mark.parametrize("transport, flags", [("shm", ELASTIC), ("tcp", ELASTIC), ("tcp", [])])
def test_one_dies_and_then_another(tmp_path: Path, transport: str, flags: list[str]) -> None:
    one = TRANSPORTS[transport]
    worlds = run(tmp_path, transport, 4, "10:1 25:2", flags)
    assert {(size, made, kept) for size, made, kept, _ in worlds} == {
        (4, 3 * one, 0),
        (3, 0, 2 * one),
        (2, 0, one),
    }


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_joiner_gets_new_connections(tmp_path: Path, transport: str) -> None:
    one = TRANSPORTS[transport]
    # The dead rank's slot is used again after a second.
    flags = ["--max-np", "3", "--blacklist-by", "slot", "--blacklist-cooldown-range", "1", "1"]
    worlds = run(tmp_path, transport, 3, "10:1", flags, SIZE_AT_END="3")
    of_three = {(made, kept, who) for size, made, kept, who in worlds if size == 3}
    after = {(one, one, "0"), (one, one, "2")}  # one link kept, and one made to the joiner
    assert {(size, made, kept) for size, made, kept, _ in worlds if size == 2} == {(2, 0, one)}
    assert after <= of_three
    # The joiner has the number of the slot of the dead one, and so has the dead one itself.
    assert of_three - after == {(2 * one, 0, who) for who in ("0", "1", "2")}
