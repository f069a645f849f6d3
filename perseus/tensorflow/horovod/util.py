"""Variables as keys, and whether calls run at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

__all__ = ["is_variable", "refs_to_vars", "tensorflow_variable", "vars_to_refs"]


def tensorflow_variable(variable: Any) -> Any:
    """The variable itself, or what a variable of Keras 3 holds."""
    held = getattr(variable, "_value", None)
    return held if isinstance(held, tf.Variable) else variable


def is_variable(value: Any) -> bool:
    """Whether it is a variable, of TensorFlow or of Keras on it."""
    return isinstance(tensorflow_variable(value), tf.Variable)


def vars_to_refs(vars: Any) -> Any:
    """What stands for variables where they must be hashable: tuples in place of lists."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(each) for each in vars)
    return tensorflow_variable(vars).ref() if is_variable(vars) else vars


def refs_to_vars(refs: Any) -> Any:
    """The variables that vars_to_refs has hidden: lists in place of tuples."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(each) for each in refs]
    return refs.deref() if hasattr(refs, "deref") else refs


def reference(variable: Any) -> Any:
    """A hashable key."""
    return tensorflow_variable(variable).ref()


def references(variables: Iterable[Any]) -> list[Any]:
    return [reference(each) for each in variables]


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())
