"""Errors of calls that are wrong."""

from __future__ import annotations

from types import TracebackType

from perseus_core import OperationKind, refusals

__all__ = ["InvalidArgumentError", "Refusing", "as_invalid_argument"]


class InvalidArgumentError(ValueError, RuntimeError):
    """An argument is wrong: a ValueError, as elsewhere in Perseus, and a RuntimeError, which Gloo
    and NCCL raise, so that programs that catch theirs catch this one."""


def as_invalid_argument(error: Exception) -> Exception:
    """Returns the error, or if it is a ValueError, one that is also a RuntimeError."""
    if not isinstance(error, ValueError) or isinstance(error, RuntimeError):
        return error
    found = InvalidArgumentError(str(error))
    found.__cause__ = error
    return found


class Refusing:
    """A context manager for the preparation of unnamed operations: an error in it makes them fail
    on all ranks. It is a class since every call of a group goes through it."""

    __slots__ = ("_count", "_kind", "_prefix", "_process_set")

    def __init__(self, kind: OperationKind, prefix: str, count: int, process_set: int) -> None:
        self._kind = kind
        self._prefix = prefix
        self._count = count
        self._process_set = process_set

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception):
            return
        wrong = as_invalid_argument(error)
        refusals.refuse_unnamed(self._kind, self._prefix, self._count, self._process_set, wrong)
        if wrong is not error:
            raise wrong
