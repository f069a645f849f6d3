"""Local ranks of elastic jobs, by which processes choose their GPUs: no two choose the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_programs import ELASTIC

from perseus.run.hosts import slots_on

#: The process in the first slot is killed, and another one takes its place. Each keeps the device
#: that it has chosen at its start.
TRAINING = (
    ELASTIC
    + """
import signal
from perseus.common.objects import allgather_object
from perseus_core.process import plan_to_join

plan_to_join() or core.init()
device = core.local_rank()
is_first = os.environ["PERSEUS_ELASTIC_MEETING"] == "0"
state = ObjectState(broadcast, core.rank, step=0)
deadline = time.monotonic() + 30

def train(state):
    while True:
        assert time.monotonic() < deadline, "nobody has joined"
        place = device, core.local_rank(), int(os.environ["LOCAL_RANK"]), is_first
        places = allgather_object(place, "places", global_process_set)
        if len(places) == 3 and not all(first for _, _, _, first in places):
            return places
        if state.step == 5 and is_first and device == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        state.step += 1
        time.sleep(0.02)
        state.commit()

places = run_fn(train, reset)(state)
print("place", *places[core.rank()], flush=True)
core.shutdown()
"""
)


@pytest.mark.parametrize("join", ["background", "at-once"])
def test_a_process_that_takes_a_slot_has_the_local_rank_that_it_had(
    tmp_path: Path, join: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "perseus.run", "-np", "3", "--min-np", "1", "--max-np", "3"]
    command += ["--blacklist-by", "slot", "--blacklist-cooldown-range", "1", "1", "--join", join]
    result = subprocess.run(
        [*command, "-H", "localhost:3", sys.executable, str(tmp_path / "train.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    said = sorted(line.split("place ")[1] for line in result.stdout.splitlines())
    assert said == ["0 0 0 False", "1 1 1 True", "2 2 2 True"]


def test_local_ranks_follow_the_slots_and_have_no_gaps() -> None:
    places = slots_on(["a", "a", "b", "a"], [1, 0, 5, 3])
    assert [place.local_rank for place in places] == [1, 0, 0, 2]
    assert [place.local_size for place in places] == [3, 3, 1, 3]
    assert [place.cross_rank for place in places] == [0, 0, 1, 0]
    assert [place.cross_size for place in places] == [1, 2, 2, 1]
