"""Codecs: how float32 tensors are coded on the wire.

A codec's functions run on a thread of the engine, which must never wait for the GIL, so they are
C functions, given as ctypes function pointers. A compression written in Python goes where Horovod
has it: a ``Compressor`` class given as ``compression=``.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeAlias

from perseus_core import _engine
from perseus_core.arguments import plain_text

__all__ = ["CFunction", "find_codec", "register_codec"]

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
    """Registers a codec and gives its id. All ranks register the same ones in the same order.

    Args:
      encoded_size: ``size_t (void* user, size_t elements)``, a pure function.
      encode: ``void (void* user, const float* elements, size_t count, void* encoded)``.
      decode: ``void (void* user, const void* encoded, float* elements, size_t count)``.
      error_feedback: keep what encoding loses, for each tensor, and add it to its next gradient.
      user: an address that the functions are given.
    """
    number = _engine.register_codec(
        plain_text("name", name),
        _address(encoded_size),
        _address(encode),
        _address(decode),
        error_feedback,
        user,
    )
    _kept.append(
        (encoded_size, encode, decode)
    )  # the engine holds their addresses until the process ends
    return number


def find_codec(name: str) -> int:
    """The id of a codec; built in are "none", "fp16" and "bf16". ValueError if there is none."""
    return _engine.find_codec(plain_text("name", name))


def _address(function: CFunction) -> int:
    if isinstance(function, int):
        return function
    return ctypes.cast(function, ctypes.c_void_p).value or 0
