"""Training steps of contest/works/training.py's models in TensorFlow graphs, with Keras."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from contest.works.digits import batches

WARM_UP = 3
layers = tf.keras.layers


def cnn(images: Any) -> Any:
    x = layers.Conv2D(32, 3, activation="relu")(images)
    x = layers.Conv2D(64, 3, activation="relu")(x)
    x = layers.Flatten()(layers.MaxPooling2D(2)(x))
    return layers.Dense(10)(layers.Dense(128, activation="relu")(x))


def block(images: Any, after: int, stride: int) -> Any:
    """Two convolutions and a shortcut around them (He et al. 2016)."""
    x = layers.Conv2D(after, 3, stride, "same", use_bias=False)(images)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.BatchNormalization()(layers.Conv2D(after, 3, 1, "same", use_bias=False)(x))
    if stride != 1 or images.shape[-1] != after:
        images = layers.Conv2D(after, 1, stride, use_bias=False)(images)
    return layers.ReLU()(layers.Add()([x, images]))


def resnet(images: Any) -> Any:
    x = layers.Conv2D(16, 3, 1, "same", use_bias=False)(images)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for after, stride in ((16, 1), (16, 1), (64, 2), (64, 1), (256, 2), (256, 1), (256, 2)):
        x = block(x, after, stride)
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


MODELS = {"cnn": cnn, "resnet": resnet}


class Trainer:
    def __init__(self, contender: Any, model: str, batch: int, digits: str) -> None:
        tf.keras.utils.set_random_seed(0)
        self._contender = contender
        self._batches = batches(digits, batch, contender.rank, contender.size)
        with contender.scope():
            images = tf.keras.Input((28, 28, 1))
            self._model = tf.keras.Model(images, MODELS[model](images))
            self._optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
            self._optimizer.build(self._model.trainable_variables)
        self._run = contender.function(self._train)
        self._compare = contender.function(self._own_and_sum)

    def _train(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, self._model(images, training=True)
            )
            loss = tf.reduce_mean(losses)
        self._contender.train(tape, loss, self._model, self._optimizer)
        return loss

    def step(self) -> float:
        """Returns the microseconds that it took."""
        images, labels = next(self._batches)
        began = time.perf_counter()
        loss = self._run(tf.constant(images[..., None]), tf.constant(labels))
        float(loss)
        return (time.perf_counter() - began) * 1e6

    def check(self) -> None:
        """Raises if the ranks do not have the same model: then they did not train together."""
        own, total = map(float, self._compare())
        mean = total / self._contender.size
        if not abs(mean - own) <= 1e-5 * mean:
            raise ArithmeticError(f"ranks have different models: {own}, on average {mean}")

    def _own_and_sum(self) -> tuple[tf.Tensor, tf.Tensor]:
        own = tf.add_n([tf.reduce_sum(tf.abs(each)) for each in self._model.trainable_variables])
        return own, self._contender.summed([own], ["model"])[0]


_trainers: dict[str, Trainer] = {}


def step(contender: Any, *, iterations: int, model: str, batch: int, digits: str) -> list[float]:
    """Times steps of `batch` images a rank. The model is kept between turns, as in training."""
    if model not in _trainers:
        _trainers[model] = Trainer(contender, model, batch, digits)
    trainer = _trainers[model]
    times = [trainer.step() for _ in range(WARM_UP + iterations)]
    trainer.check()
    return times[WARM_UP:]
