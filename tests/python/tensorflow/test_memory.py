"""Memory that the operations take beyond TensorFlow's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from resident_memory import resident

import perseus.tensorflow.horovod as hvd

MIB = 1 << 20
SIZE = 64 * MIB


def peak_beyond(run):
    """Returns the peak of resident memory while it runs, in bytes beyond that before."""
    before = resident()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the kernel does not let the peak be forgotten")
    result = run()
    return resident("VmHWM") - before, result


def until_none_is_free():
    """Returns tensors that take up the memory that TensorFlow has freed but kept, if any."""
    tensors = []
    grown = 0
    while grown < SIZE * 0.9:
        before = resident()
        tensors.append(tf.fill([SIZE // 4], float(len(tensors))))
        grown = resident() - before
        assert len(tensors) < 32
    return tensors


@pytest.mark.parametrize(
    "reduce", [lambda x: hvd.allreduce(x, op=hvd.Sum), lambda x: hvd.broadcast(x, 0)]
)
def test_a_tensor_that_nobody_else_has_becomes_its_own_result(reduce):
    @tf.function
    def run(value):
        return reduce(tf.fill([SIZE // 4], value))

    run(tf.constant(0.0))  # what the engine needs besides it keeps
    held = until_none_is_free()
    beyond, result = peak_beyond(lambda: run(tf.constant(1.0)))
    assert float(result[-1]) in (1.0, hvd.size())
    del held
    assert SIZE * 0.9 < beyond < SIZE * 1.5
