"""Reduces a model's gradients in a TensorFlow graph, for contest/works/step.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from contest.models import Model
from contest.works.check import require


def gradients(contender: Any, trained: Model, iterations: int) -> list[float]:
    """Returns microseconds from having all gradients on all ranks to having their sums."""
    made = _made.setdefault(contender, {})
    if trained.name not in made:
        made[trained.name] = contender.function(partial(step, contender, trained))
        _, sums = made[trained.name](tf.ones([len(trained.tensors)]))
        for of, result in zip(trained.tensors, sums, strict=True):
            require(result.numpy().ravel(), of.elements, contender.size)
    zeros = tf.zeros([len(trained.tensors)])
    return [float(made[trained.name](zeros)[0]) for _ in range(iterations)]


#: Graphs of each contender, by the models' names.
_made: WeakKeyDictionary[Any, dict[str, Callable[..., Any]]] = WeakKeyDictionary()


def step(contender: Any, trained: Model, values: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the microseconds, and the sums, so that freeing them is not timed.

    Nor is making the gradients. They are made here because backward makes them in memory that
    nobody else uses: tensors passed into a graph could not be reduced in place.
    """
    tensors = trained.tensors
    # A different value for each: TensorFlow would merge equal gradients into one.
    each = tf.unstack(values, len(tensors))
    gradients = [tf.fill(list(of.shape), value) for of, value in zip(tensors, each, strict=True)]
    with tf.control_dependencies(gradients):
        met = contender.meet()
    with tf.control_dependencies([met]):
        began = tf.timestamp()
    with tf.control_dependencies([began]):
        sums = contender.summed(gradients, [f"{trained.name}.{of.name}" for of in tensors])
    with tf.control_dependencies(sums):
        ended = tf.timestamp()
    return (ended - began) * 1e6, sums
