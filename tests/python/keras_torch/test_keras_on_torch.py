"""Distributed optimizers of Keras 3 on PyTorch."""

from __future__ import annotations

import keras as keras_3
import pytest
import torch
from keras_callback_cases import *  # noqa: F403
from keras_cases import *  # noqa: F403
from keras_local_cases import *  # noqa: F403

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
