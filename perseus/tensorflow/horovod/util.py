"""Variables of TensorFlow and Keras, and their references, which can be keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

__all__ = ["is_variable", "refs_to_vars", "tensorflow_variable", "vars_to_refs"]


def tensorflow_variable(variable: Any) -> Any:
    """Returns the variable itself, or the one in a variable of Keras 3."""
    held = getattr(variable, "_value", None)
    return held if isinstance(held, tf.Variable) else variable


def is_variable(value: Any) -> bool:
    """Returns whether a value is a variable of TensorFlow, or of Keras on TensorFlow."""
    return isinstance(tensorflow_variable(value), tf.Variable)


def vars_to_refs(vars: Any) -> Any:
    """Replaces variables by hashable references, and lists by tuples."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(each) for each in vars)
    return tensorflow_variable(vars).ref() if is_variable(vars) else vars


def refs_to_vars(refs: Any) -> Any:
    """Undoes vars_to_refs, except that it returns lists."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(each) for each in refs]
    return refs.deref() if hasattr(refs, "deref") else refs


def reference(variable: Any) -> Any:
    """Returns a hashable key for a variable."""
    return tensorflow_variable(variable).ref()


def references(variables: Iterable[Any]) -> list[Any]:
    return [reference(each) for each in variables]


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())
