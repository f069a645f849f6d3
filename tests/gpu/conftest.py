"""Tests that run on a GPU inside N processes: see README.md. All ranks use GPU rank % GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import perseus_core

IS_CPU = os.environ.get("PERSEUS_GPU_CHECK_DEVICE") == "cpu"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: says nothing where the tensors are in CPU memory")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if IS_CPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="PERSEUS_GPU_CHECK_DEVICE is cpu"))


@pytest.fixture(scope="module", autouse=True)
def leaves_engine() -> Iterator[None]:
    """The engine is shut down when a module's tests end, whichever test started it."""
    yield
    if perseus_core.is_initialized():
        perseus_core.barrier()
        perseus_core.shutdown()


# These tests have a pytest.ini of their own, so they do not see the fixture of tests/conftest.py.
@pytest.fixture
def two_ranks() -> None:
    """Skips a test that needs several ranks where there is one."""
    perseus_core.init()
    if perseus_core.size() < 2:
        pytest.skip("needs ranks that can differ")
