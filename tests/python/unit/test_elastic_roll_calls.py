"""Small operations of elastic jobs: ranks meet in roll calls in each world."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from elastic_programs import ELASTIC

#: A rank of three is killed between two calls. The two that are left go on until they have met in
#: roll calls in their new world. Every result is right, and all ranks stop at the same call.
TRAINING = (
    ELASTIC
    + """
import signal

core.init()
state = ObjectState(broadcast, core.rank, calls=0)
dies = os.environ["PERSEUS_RANK"] == "2"

def held():
    return core.counters()["roll_calls"]

def train(state):
    begin, fewest = held(), 0
    while core.size() == 3 or fewest < 200:
        assert state.calls < 300_000, fewest
        number = np.float32(state.calls % 1000)
        total = core.allreduce(number + core.rank(), core.ReduceOp.SUM, name="small")
        assert total == core.size() * number + core.size() * (core.size() - 1) / 2, total
        fewest = int(core.allreduce(held() - begin, core.ReduceOp.MIN, name="held"))
        state.calls += 1
        if dies and state.calls == 2000:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.calls % 100 == 0:
            state.commit()

run_fn(train, reset)(state)
print("well", core.size(), state.calls, flush=True)
core.shutdown()
"""
)


def test_survivors_meet_in_roll_calls_of_their_own(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    command = [sys.executable, "-m", "perseus.run", "-np", "3", "--min-np", "2"]
    command += ["--max-np", "3", "--blacklist-by", "slot", "-H", "localhost:3"]
    result = subprocess.run(
        [*command, sys.executable, str(program)],
        env={**os.environ, "PERSEUS_TRANSPORT": "shm"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    ends = [line.partition(">:")[2] for line in result.stdout.splitlines() if "well" in line]
    assert len(ends) == 2 and len(set(ends)) == 1 and ends[0].startswith("well 2 "), ends
