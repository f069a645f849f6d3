"""Codecs, which encode float32 tensors on the wire.

The functions of a codec run on a thread of the engine. That thread must never wait for the GIL, so
they are C functions, given as ctypes function pointers. For a compression written in Python, use
Horovod's way: a ``Compressor`` class passed as ``compression=``.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

from perseus_core import _engine
from perseus_core.arguments import plain_text

__all__ = [
    "CFunction",
    "commit_residuals",
    "find_codec",
    "forget_residuals",
    "register_codec",
    "restore_residuals",
]

#: A function of a library loaded by ctypes, or the address of one.
CFunction: TypeAlias = Any

_kept: list[object] = []


def register_codec(
    name: str,
    encoded_size: CFunction,
    encode: CFunction,
    decode: CFunction,
    *,
    error_feedback: bool = False,
    user: int = 0,
) -> int:
    """Registers a codec and returns its id.

    All ranks must register the same codecs, in any order: a codec's id is computed from its name.

    Args:
      encoded_size: ``size_t (void* user, size_t elements)``, a pure function; gives bytes.
      encode: ``void (void* user, const float* elements, size_t count, void* encoded)``.
      decode: ``void (void* user, const void* encoded, float* elements, size_t count)``.
      error_feedback: keep the error of encoding for each tensor, and add it to its next gradient.
      user: an address that is passed to the functions.
    """
    number = _engine.register_codec(
        plain_text("name", name),
        _address(encoded_size),
        _address(encode),
        _address(decode),
        error_feedback,
        user,
    )
    # The engine uses their addresses until the process ends.
    _kept.append((encoded_size, encode, decode))
    return number


def find_codec(name: str) -> int:
    """Returns the id of a codec; raises ValueError if there is none of this name.

    The built-in ones are "none", "fp16" and "bf16".
    """
    return _engine.find_codec(plain_text("name", name))


def _address(function: CFunction) -> int:
    if isinstance(function, int):
        return function
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def commit_residuals() -> None:
    """Notes the residuals of error feedback as those of the model that the program saves now.

    Call it where the program saves what it goes back to after a failure, while no operation is
    under way. It copies nothing. ``State.commit`` of elastic training calls it.
    """
    _engine.commit_residuals()


def restore_residuals() -> None:
    """Goes back to the residuals of the last commit_residuals, as the program does to its model.

    The steps since then do not count and will be done again, so what they have left over must not
    count either. Without a commit it does nothing. An operation that is under way goes back when it
    ends. Elastic training calls it after a rank is lost.
    """
    _engine.restore_residuals()


def forget_residuals() -> None:
    """Forgets all residuals, while no operation is under way.

    Call it on a rank that goes on from a model to which its last gradients did not lead, such as
    the checkpoint of another run.
    """
    _engine.forget_residuals()
