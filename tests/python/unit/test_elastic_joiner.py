"""A rank that joins an elastic job keeps nobody waiting before it is about to train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: A job of two ranks, which a third one joins. What it does between init and the training function
#: takes until the others have done 20 more steps, so it never ends if they wait for it. Meanwhile
#: the second rank leaves if LEAVES is set, so that the third one gets another place than planned.
TRAINING = """
import os, pathlib, subprocess, sys, time
import torch
import perseus.torch.horovod as hvd

began = time.monotonic()
hvd.init()
folder = pathlib.Path(os.environ["FOLDER"])
is_joiner = os.environ["PERSEUS_ELASTIC_MEETING"] != "0"
leaves = bool(os.environ.get("LEAVES"))

def has_begun(): return (folder / "joins").exists()

def use(hosts):
    (folder / "new").write_text(hosts.replace(" ", "\\n") + "\\n")
    (folder / "new").rename(folder / "hosts")

if is_joiner:
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (2, 3, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.mpi_ops.is_homogeneous()) == (1, 2, False)
    assert hvd.global_process_set.rank() == 2 and hvd.global_process_set.ranks == [0, 1, 2]
    try:
        hvd.allreduce(torch.ones(1), name="too early")
        raise SystemExit("a collective has worked")
    except hvd.HorovodInternalError as error:
        assert "before the function given to elastic.run begins" in str(error), error
    hvd.init()  # a second call does nothing
    (folder / "joins").touch()
    deadline = time.monotonic() + 20
    while not (folder / "20 more").exists():
        assert time.monotonic() < deadline, "the others have not gone on"
        time.sleep(0.01)

model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
state = hvd.elastic.TorchState(model, optimizer, step=0, since=0, joined=0)
resets = []
state.register_reset_callbacks([lambda: resets.append((hvd.rank(), hvd.size()))])

@hvd.elastic.run
def train(state):
    while state.joined < 10:
        assert time.monotonic() < began + 40, "it has not joined"
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        # All learn of it at the same step.
        state.since += int(hvd.allreduce(torch.tensor(has_begun()).int(), op=hvd.Max))
        state.joined += os.environ["WANTED"] == str([*map(int, workers())])
        if hvd.rank() == 0 and state.step == 3: use("localhost:2 127.0.0.1:1")
        if hvd.rank() == 0 and state.since == 10 and leaves: use("localhost:1 127.0.0.1:1")
        if hvd.rank() == 0 and state.since >= 20 and (not leaves or hvd.size() == 1):
            (folder / "20 more").touch()
        time.sleep(0.01)
        state.commit()

def workers():
    return hvd.allgather(torch.tensor([int(os.environ["LAUNCHED"])]), name="workers")

os.environ["LAUNCHED"] = "2" if is_joiner else os.environ["PERSEUS_RANK"]
train(state)
print("well", hvd.rank(), hvd.size(), resets, flush=True)
"""


def run(folder: Path, wanted: str, **more: str) -> list[str]:
    """Returns what the ranks have said at the end: their ranks, sizes and resets."""
    (folder / "hosts").write_text("localhost:2\n")
    (folder / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "perseus.run", "-np", "2", "--min-np", "1"]
    command += ["--host-discovery-script", f"cat {folder}/hosts", "--verbose"]
    result = subprocess.run(
        [*command, sys.executable, str(folder / "train.py")],
        env={**os.environ, "FOLDER": str(folder), "WANTED": wanted, **more},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line.split("well ")[1] for line in result.stdout.splitlines() if "well " in line]
    return sorted(lines)


def test_others_train_while_a_rank_gets_ready(tmp_path: Path) -> None:
    said = run(tmp_path, "[0, 1, 2]")
    assert said == ["0 3 [(0, 3)]", "1 3 [(1, 3)]", "2 3 []"]


def test_a_joiner_is_told_if_its_place_is_not_the_planned_one(tmp_path: Path) -> None:
    said = run(tmp_path, "[0, 2]", LEAVES="1")
    assert said == ["0 2 [(0, 1), (0, 2)]", "1 2 [(1, 2)]"]
