"""The state that a rank of a real job gets as it joins, also if a rank that gives it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Two ranks train, and a third one joins them. If DIES is a launched rank, this one kills itself
#: once half of what it gives to the third one is on its way.
TRAINING = """
import os, pathlib, signal, time
import torch
import perseus.torch.horovod as hvd
import perseus_core as core
from perseus.common import state_sources
from perseus.common.state_sources import Group

hvd.init()
folder = pathlib.Path(os.environ["FOLDER"])
is_joiner = os.environ["PERSEUS_ELASTIC_MEETING"] != "0"
launched = "joiner" if is_joiner else os.environ["PERSEUS_RANK"]
dies = launched == os.environ["DIES"]

# All ranks are on one host; here each gives the state as if it had one of its own.
state_sources.groups_of = lambda hosts, holders: [
    Group(tuple(holders), tuple(r for r in range(hvd.size()) if r not in holders))
]
begin = core.broadcast_async

def dying_broadcast(array, root, **options):
    if dies and root == hvd.rank() and array.size > 100000:
        half = array[: array.size // 2]
        name = options["name"] + ".half"
        begin(half, root, **{**options, "name": name, "out": half})
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return begin(array, root, **options)

core.broadcast_async = dying_broadcast

torch.manual_seed(7 if is_joiner else 1)
model = torch.nn.Linear(1000, 300)
model.register_buffer("own", torch.tensor([100.0 + core.rank()]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0, together=0, starts=hvd.size())

def use(hosts):
    (folder / "new").write_text(hosts + "\\n")
    (folder / "new").rename(folder / "hosts")

@hvd.elastic.run
def train(state):
    while state.together < 5:
        optimizer.zero_grad()
        model(torch.ones(1, 1000)).sum().backward()
        optimizer.step()
        state.step += 1
        has_joined = hvd.allreduce(torch.tensor(float(is_joiner)), op=hvd.Sum) > 0
        state.together += int(has_joined)
        if hvd.rank() == 0 and state.step == 3: use("localhost:3")
        time.sleep(0.01)
        state.commit()

train(state)
own = {float(each) for each in hvd.allgather(model.own)}
assert own == {100.0}, own  # rank 0's, and not a mixture
# The same steps from the same values, without other ranks: the gradients are the same on all.
torch.manual_seed(1)
alone = torch.nn.Linear(1000, 300)
steps = torch.optim.SGD(alone.parameters(), lr=0.125, momentum=0.5)
for _ in range(state.step):
    steps.zero_grad()
    alone(torch.ones(1, 1000)).sum().backward()
    steps.step()
assert torch.equal(model.weight, alone.weight) and torch.equal(model.bias, alone.bias)
print("well", hvd.size(), launched, flush=True)
"""


def run(folder: Path, dies: str) -> list[str]:
    """Returns the size of the last world, and who has come to the end."""
    (folder / "hosts").write_text("localhost:2\n")
    (folder / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "perseus.run", "-np", "2", "--min-np", "1", "--max-np", "3"]
    command += ["--host-discovery-script", f"cat {folder}/hosts", "--blacklist-by", "slot"]
    result = subprocess.run(
        [*command, "--verbose", sys.executable, str(folder / "train.py")],
        env={**os.environ, "FOLDER": str(folder), "DIES": dies, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return sorted(line.split("well ")[1] for line in result.stdout.splitlines() if "well " in line)


def test_a_joiner_gets_the_state_from_several_ranks(tmp_path: Path) -> None:
    assert run(tmp_path, "nobody") == ["3 0", "3 1", "3 joiner"]


@pytest.mark.parametrize("dies", ["0", "1"])
def test_a_rank_that_gives_the_state_is_killed_in_the_middle(tmp_path: Path, dies: str) -> None:
    left = {"0": "1", "1": "0"}[dies]
    assert run(tmp_path, dies) == [f"2 {left}", "2 joiner"]
