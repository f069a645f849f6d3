"""The errors of operations, which are errors of MXNet and of Perseus at the same time.

MXNet raises the error of an operation where the program waits for an array that it writes. It
chooses the class by the first word of the message.
"""

from __future__ import annotations

import mxnet as mx

from perseus_core import errors

__all__ = ["from_status", "wrong_argument"]

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
_VALUE_ERROR = _registered(ValueError, "PerseusValueError")


def wrong_argument(message: str) -> Exception:
    """Returns a ValueError that is an MXNetError, too, as Horovod's is."""
    return _VALUE_ERROR(message)


def from_status(status: int, message: str) -> Exception:
    """Returns the exception for a status of perseus.h other than PERSEUS_OK."""
    base = type(errors.from_status(status, message))
    if base is ValueError:
        error = wrong_argument(message)
    else:
        error = _CLASSES.get(base, _CLASSES[errors.HorovodInternalError])(message)
    errors.mark_reported(error)
    return error
