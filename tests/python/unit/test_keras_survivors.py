"""Elastic training with Keras: a rank is killed, and the others end as if it had not been."""

from __future__ import annotations

import importlib.util
import os

import pytest
from conftest import RunRanks

#: All ranks have the same data, so that it does not matter how many are left.
TRAINING = """
import os, signal, numpy, keras
import perseus.keras as hvd

launched = int(os.environ["PERSEUS_RANK"])
hvd.init()
x = numpy.random.default_rng(0).normal(size=(8, 4)).astype("float32")
y = x[:, :2] ** 2

def make():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
    generator = numpy.random.default_rng(1)
    model.set_weights([generator.normal(size=each.shape) for each in model.get_weights()])
    return model, keras.optimizers.Adam(0.1)

model, optimizer = make()
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(optimizer, "mean_squared_error")

@hvd.elastic.run
def train(state):
    while state.step < 12:
        if state.step == 5 and launched == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        model.train_on_batch(x, y)
        state.step += 1
        if state.step % 3 == 0:
            state.commit()

state = hvd.elastic.KerasState(model, step=0)
resets = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
assert resets == [2], resets

alone, optimizer = make()
alone.compile(optimizer, "mean_squared_error")
for _ in range(12):
    alone.train_on_batch(x, y)
for ours, wanted in zip(model.get_weights(), alone.get_weights()):
    numpy.testing.assert_allclose(ours, wanted, atol=1e-5)
print("well")
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_others_go_on_from_the_last_commit(run_ranks: RunRanks, backend: str) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("keras", backend)):
        pytest.skip(f"needs Keras and {backend}")
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    options = ("--min-np", "1")
    result = run_ranks(3, TRAINING, options=options, environment=environment, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == 2, result.stdout
