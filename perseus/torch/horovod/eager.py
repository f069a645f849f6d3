"""Prevents torch.compile from compiling functions that call the engine.

A compiled function that calls a collective is split into two graphs at the call, and the collective
runs uncompiled. Otherwise the compiler would trace our code, warn of everything that it cannot
compile, and compile the rest in small pieces, without a benefit.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def eager(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function so that it is never compiled."""
    # Like torch.compiler.disable, except that this one loads the compiler only at its first call.
    disabled: Callable[P, T] = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # Loading the compiler takes a second, which a program that compiles nothing need not wait.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        return disabled(*args, **kwargs)

    return call
