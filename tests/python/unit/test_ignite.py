"""PyTorch-Ignite, a library with a backend for Horovod, over the drop-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ignite")

PROGRAM = """
import sys
import ignite.distributed as idist
import torch
from ignite.engine import Engine
from ignite.metrics import Accuracy, MeanSquaredError

EPOCHS, BATCH = 5, 16
generator = torch.Generator().manual_seed(7)
inputs = torch.randn(64, 5, generator=generator, dtype=torch.float64)
targets = inputs @ torch.randn(5, 1, generator=generator, dtype=torch.float64)


def make_model():
    torch.manual_seed(idist.get_rank() if idist.backend() else 0)  # ranks begin apart
    return torch.nn.Linear(5, 1, dtype=torch.float64)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def alone():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
            step(model, optimizer, x, y)
    return model


def train(local_rank):
    assert idist.backend() == "horovod"
    assert idist.model_name() == "horovod-dist"
    data = torch.utils.data.TensorDataset(inputs, targets)
    loader = idist.auto_dataloader(data, batch_size=BATCH, shuffle=False)
    model = idist.auto_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = idist.auto_optim(optimizer)
    assert isinstance(optimizer, torch.optim.SGD) and hasattr(optimizer, "skip_synchronize")
    Engine(lambda _, batch: step(model, optimizer, *batch)).run(loader, max_epochs=EPOCHS)
    for mine, reference in zip(model.parameters(), alone().parameters()):
        torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-12)

    rank, size = idist.get_rank(), idist.get_world_size()
    ranks = torch.arange(float(size))
    mine = torch.tensor([float(rank)])
    expected = {"SUM": ranks.sum(), "AVERAGE": ranks.mean(), "MIN": 0.0, "MAX": size - 1.0}
    for op, value in expected.items():
        assert idist.all_reduce(mine.clone(), op=op).item() == value, op
    assert idist.all_gather(mine).tolist() == ranks.tolist()
    assert idist.all_gather({"rank": rank}) == [{"rank": r} for r in range(size)]
    assert idist.broadcast(f"words of {rank}", src=1, safe_mode=True) == "words of 1"
    group = idist.new_group([0])
    assert idist.all_gather(mine, group=group).tolist() == [float(rank)]
    idist.barrier()

    evaluator = Engine(lambda _, batch: (model(batch[0]), batch[1]))
    MeanSquaredError().attach(evaluator, "mse")
    metric = evaluator.run(loader).metrics["mse"]
    whole = torch.nn.functional.mse_loss(model(inputs), targets).item()
    assert abs(metric - whole) < 1e-9
    sys.stdout.write(f"trained {rank} {size}\\n")


if __name__ == "__main__":
    if sys.argv[1] == "initialize":
        idist.initialize("horovod")
        train(idist.get_local_rank())
        idist.finalize()
    else:
        processes = {"nproc_per_node": 2} if sys.argv[1] == "spawn" else {}
        with idist.Parallel(backend="horovod", **processes) as parallel:
            parallel.run(train)
"""


@pytest.mark.parametrize(
    "how",
    [
        "launched",
        pytest.param("initialize", marks=pytest.mark.long),
        pytest.param("spawn", marks=pytest.mark.long),
    ],
)
def test_two_ranks_train_as_one_process_does(how: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    if how == "spawn":  # by horovod.run
        launcher = [sys.executable, "-m", "perseus.dropin"]
    else:
        options = ["--drop-in", "-np", "2"]
        launcher = [sys.executable, "-m", "perseus.run", *options, sys.executable]
    command = [*launcher, str(program), how]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if "trained" in line]
    assert sorted(lines) == ["[0]<stdout>:trained 0 2", "[1]<stdout>:trained 1 2"]
