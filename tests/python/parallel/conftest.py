"""Tests that run inside N processes: perseusrun -np N python -m pytest tests/python/parallel

Every rank runs the same tests in the same order, and each holds for any N. A test ends with
nothing of its own in flight.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perseus_core


def pytest_configure(config: pytest.Config) -> None:
    """Deprecation warnings of PyTorch and NumPy are errors."""
    for warning in ("DeprecationWarning", "FutureWarning"):
        config.addinivalue_line("filterwarnings", f"error::{warning}")


@pytest.fixture(scope="module", autouse=True)
def leaves_engine() -> Iterator[None]:
    """The engine is shut down when a module's tests end, whichever test started it."""
    yield
    if perseus_core.is_initialized():
        perseus_core.barrier()
        perseus_core.shutdown()


@pytest.fixture
def core() -> None:
    """Rank and size are known, and collectives may be called."""
    perseus_core.init()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all ranks share. perseus.torch.horovod must be ready."""
    import perseus.torch.horovod as hvd

    name = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
    yield Path(name)
    hvd.barrier()
    if hvd.rank() == 0:
        shutil.rmtree(name)


@pytest.fixture
def device() -> Any:
    """The device of a test's tensors: CPU memory, or this rank's GPU; see torch_device."""
    import torch_device

    return torch_device.of_tests()


@pytest.fixture
def horovod() -> None:
    """perseus.torch.horovod is ready, and ranks draw the same random numbers."""
    import torch

    import perseus.torch.horovod as hvd

    torch.manual_seed(0)
    hvd.init()


@pytest.fixture
def step_hooks() -> None:
    """Skips a test of them if an optimizer of PyTorch itself runs none.

    Once a process has used Dynamo, PyTorch 2.1 runs none of optimizers that it first makes later.
    """
    import torch

    calls = []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    if not calls:
        pytest.skip("this PyTorch runs no step hooks after Dynamo")
