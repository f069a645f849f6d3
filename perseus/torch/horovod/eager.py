"""Keeps torch.compile out of what talks to the engine.

A compiled function that calls a collective is broken in two graphs there; the collective itself
runs as it does elsewhere. Left alone, the compiler would look into our code, warn of what it cannot
see through, and compile the rest of it piece by piece, to no use.
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
    """Decorates a function that is never to be compiled."""
    # torch.compiler.disable, but for the time of its call: it loads the compiler at its first run.
    disabled = torch._disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # Who compiles nothing need not wait a second for the compiler to load.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        return disabled(*args, **kwargs)

    return call
