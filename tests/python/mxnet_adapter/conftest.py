"""Tests of the MXNet adapter: perseusrun -np N python -m pytest tests/python/mxnet_adapter

Every rank runs the same tests in the same order, and each holds for any N. They need an environment
of their own, for MXNet takes an old NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def horovod() -> Iterator[None]:
    """perseus.mxnet.horovod is ready, with process sets that may be added."""
    import perseus.mxnet.horovod as hvd

    hvd.init(process_sets="dynamic")
    yield
    if hvd.is_initialized():
        hvd.shutdown()
