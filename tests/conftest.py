"""Fixtures of all Python tests that run inside the ranks of a job."""

from __future__ import annotations

import pytest


@pytest.fixture
def job() -> None:
    """Brings this rank into the job. A module that needs another start overrides it."""
    import perseus_core

    perseus_core.init()


@pytest.fixture
def two_ranks(job: None) -> None:
    """Skips a test that needs several ranks where there is one."""
    import perseus_core

    if perseus_core.size() < 2:
        pytest.skip("needs ranks that can differ")
