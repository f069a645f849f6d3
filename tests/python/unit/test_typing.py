"""What a type checker sees of the installed packages, in a program that uses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).resolve().parents[3]

#: Frameworks are not read, so that the result is the same without them.
CONFIGURATION = f"""
[mypy]
strict = true
follow_imports = silent
mypy_path = {ROOT}
[mypy-torch.*,tensorflow.*,keras.*,h5py.*,mxnet.*,cloudpickle.*,ml_dtypes.*,yaml.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-perseus._keras.*,perseus.keras.*,perseus.mxnet.*,perseus.tensorflow.*,perseus.torch.*]
disallow_subclassing_any = false
"""

ADAPTERS = ["torch", "tensorflow", "mxnet", "keras"]
OF_HOROVOD = ["init", "shutdown", "allreduce", "broadcast", "ProcessSet", "global_process_set"]

PROGRAMS = {
    "adapters": "\n".join(
        [f"import perseus.{adapter} as {adapter}" for adapter in ADAPTERS]
        + [f"{adapter}.{name}" for adapter in ADAPTERS[:3] for name in OF_HOROVOD]
        + [f"reveal_type({adapter}.rank())" for adapter in ADAPTERS]
    ),
    "optimizer": """
import torch
import perseus.torch as hvd

optimizer = hvd.DistributedOptimizer(torch.optim.SGD([], lr=0.1))
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
""",
    "state": """
import perseus.torch as hvd

@hvd.elastic.run
def train(state: hvd.elastic.TorchState, epochs: int) -> float:
    return float(state.batch * epochs)

state = hvd.elastic.TorchState(batch=0)
print(train(state, 3) + state.batch)
""",
    "mistakes": """
import numpy as np
import perseus.torch as hvd
import perseus_core

hvd.broadcast_object({}, root_rank="0")
perseus_core.allreduce(np.ones(3), op="sum")
""",
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """mypy's messages about each program, without the places."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "mypy.ini").write_text(CONFIGURATION)
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    files = [f"{name}.py" for name in PROGRAMS]
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return {
        name: [
            line.split(": ", 1)[1]
            for line in done.stdout.splitlines()
            if line.startswith(f"{name}.py:")
        ]
        for name in PROGRAMS
    }


@pytest.mark.parametrize("package", ["perseus", "perseus_core"])
def test_packages_say_that_they_have_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_every_adapter_shows_the_names_of_horovod(messages: dict[str, list[str]]) -> None:
    # What `__all__` has in a form that mypy does not read would be missing.
    assert messages["adapters"] == ['note: Revealed type is "int"'] * len(ADAPTERS)


def test_optimizer_has_its_own_methods(messages: dict[str, list[str]]) -> None:
    assert messages["optimizer"] == []


def test_state_has_the_attributes_that_it_was_given(messages: dict[str, list[str]]) -> None:
    assert messages["state"] == []


def test_wrong_arguments_are_errors(messages: dict[str, list[str]]) -> None:
    root_rank, op = messages["mistakes"]
    assert 'Argument "root_rank" to "broadcast_object" has incompatible type "str"' in root_rank
    assert 'Argument "op" to "allreduce" has incompatible type "str"' in op
