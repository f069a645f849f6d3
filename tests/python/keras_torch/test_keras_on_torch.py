"""Distributed optimizers of Keras 3 on PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys

import keras as keras_3
import pytest
import torch
from keras_callback_cases import *  # noqa: F403
from keras_cases import *  # noqa: F403

import perseus.keras


@pytest.fixture
def keras():
    return keras_3


@pytest.fixture
def hvd():
    return perseus.keras


@pytest.fixture
def gradients_of():
    def compute(model, x, y):
        model.zero_grad()
        loss = torch.mean(torch.square(model(x) - torch.as_tensor(y)))
        loss.backward()
        return [variable.value.grad for variable in model.trainable_variables]

    return compute


@pytest.fixture
def partial():
    def make(optimizer, layer, scaled):
        return perseus.keras.PartialDistributedOptimizer(
            optimizer, local_layers=layer, scale_local_gradients=scaled
        )

    return make


@pytest.fixture
def accumulating():
    def make(optimizer, passes, averaged):
        return perseus.keras.PartialDistributedOptimizer(
            optimizer, backward_passes_per_step=passes, average_aggregated_gradients=averaged
        )

    return make


WITHOUT_TENSORFLOW = """
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
sys.modules["tensorflow"] = None  # so that no import of it succeeds
import keras
import perseus.keras as hvd

hvd.init()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mean_squared_error")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
model.fit(keras.ops.ones((4, 2)), keras.ops.ones((4, 1)), verbose=0, callbacks=callbacks)
print("well")
"""


def test_it_does_without_tensorflow():
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW]
    alone = {key: os.environ[key] for key in os.environ if not key.startswith("PERSEUS_")}
    result = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert result.stdout == "well\n", result.stderr
