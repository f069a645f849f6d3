"""Tests of Keras on PyTorch: perseusrun -np N python -m pytest tests/python/keras_torch

Every rank runs the same tests in the same order, and each holds for any N.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["KERAS_BACKEND"] = "torch"

pytest.register_assert_rewrite("keras_cases", "keras_callback_cases", "keras_local_cases")


@pytest.fixture(scope="session", autouse=True)
def horovod() -> Iterator[None]:
    """perseus.keras is ready."""
    import torch

    import perseus.keras as hvd

    torch.set_num_threads(1)
    hvd.init()
    yield
    if hvd.is_initialized():
        hvd.shutdown()
