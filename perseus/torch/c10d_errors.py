"""Errors of calls that are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["InvalidArgumentError", "invalid_arguments"]


class InvalidArgumentError(ValueError, RuntimeError):
    """An argument is wrong: a ValueError, as elsewhere in Perseus, and a RuntimeError, which Gloo
    and NCCL raise, so that programs that catch theirs catch this one."""


@contextlib.contextmanager
def invalid_arguments() -> Iterator[None]:
    """Turns a ValueError into one that is also a RuntimeError."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, RuntimeError):
            raise
        raise InvalidArgumentError(str(error)) from error
