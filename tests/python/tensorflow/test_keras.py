"""Distributed optimizers of tf.keras: of Keras 3, or of Keras 2 with older releases."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from keras_cases import *  # noqa: F403
from keras_cases import X, Y, assert_weights, make_model, own_rows, rank, size

import perseus.keras
import perseus.tensorflow.keras


@pytest.fixture
def keras():
    return tf.keras


@pytest.fixture
def hvd():
    return perseus.tensorflow.keras


@pytest.fixture
def gradients_of():
    def compute(model, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        return tape.gradient(loss, model.trainable_variables)

    return compute


@pytest.fixture
def partial():
    def make(optimizer, layer, scaled):
        return perseus.keras.PartialDistributedOptimizer(
            optimizer, local_layers=layer, scale_local_gradients=scaled
        )

    return make


@pytest.fixture
def accumulating(hvd):
    def make(optimizer, passes, averaged):
        return hvd.DistributedOptimizer(
            optimizer, backward_passes_per_step=passes, average_aggregated_gradients=averaged
        )

    return make
