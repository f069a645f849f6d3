"""Tests of the TensorFlow adapter: perseusrun -np N python -m pytest tests/python/tensorflow

Every rank runs the same tests in the same order, and each holds for any N.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Its notes on the processor are for others to read.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest.register_assert_rewrite("keras_cases", "keras_callback_cases", "keras_local_cases")


@pytest.fixture(scope="session", autouse=True)
def horovod() -> Iterator[None]:
    """perseus.tensorflow.horovod is ready, and ranks draw the same random numbers."""
    import tensorflow as tf

    import perseus.tensorflow.horovod as hvd

    tf.config.threading.set_inter_op_parallelism_threads(4)
    tf.random.set_seed(0)
    hvd.init(process_sets="dynamic")
    yield
    if hvd.is_initialized():
        hvd.shutdown()
