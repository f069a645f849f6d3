"""The errors of operations, which are errors of MXNet and of Perseus at the same time.

MXNet raises the error of an operation where the program waits for an array that it writes. It
chooses the class by the first word of the message.
"""

from __future__ import annotations

import mxnet as mx

from perseus_core import errors

__all__ = ["from_status"]

_BASES = (
    errors.HorovodInternalError,
    errors.NotInitializedError,
    errors.AbortedError,
    errors.MismatchError,
    errors.NonFiniteError,
)


def _registered(base: type[Exception], word: str) -> type[Exception]:
    def without_first_word(self: Exception, message: object = "") -> None:
        """Removes the first word, which MXNet leaves in the message."""
        Exception.__init__(self, str(message).removeprefix(f"{word}: "))

    attributes = {"__doc__": base.__doc__, "__init__": without_first_word}
    error = type(base.__name__, (mx.MXNetError, base), attributes)
    mx.error.register(word, error)
    return error


_CLASSES: dict[type[Exception], type[Exception]] = {
    base: _registered(base, base.__name__) for base in _BASES
}
# MXNet has a class of its own for the word ValueError.
_registered(ValueError, "PerseusValueError")


def from_status(status: int, message: str) -> Exception:
    """Returns the exception for a status of perseus.h other than PERSEUS_OK."""
    plain = errors.from_status(status, message)
    if isinstance(plain, ValueError):
        return plain
    error = _CLASSES.get(type(plain), _CLASSES[errors.HorovodInternalError])(message)
    errors.mark_reported(error)
    return error
