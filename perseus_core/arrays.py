"""Arrays of any kind in CPU memory, as NumPy arrays over the same memory.

It supports NumPy arrays, Python scalars, and arrays that speak DLPack in CPU memory (CuPy's
pinned memory, JAX, PyTorch, TensorFlow, ...), the buffer protocol or ``__array_interface__``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from perseus_core import _engine
from perseus_core.constants import DataType

__all__ = [
    "Array",
    "ArrayLike",
    "as_array",
    "as_input",
    "bfloat16",
    "dtype_number",
    "from_result",
    "is_plain",
]

#: An array that a call accepts: see the docstring of this module. No type says it more precisely.
ArrayLike: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]

_NUMBERS = {member.name.lower(): member.value for member in DataType}
# Caches the numbers of dtypes: asking NumPy for a dtype's name takes longer than most of a call.
_CACHED_NUMBERS: dict[np.dtype[Any], int] = {}
_CPU = 1
_PINNED = 3


def as_array(array: ArrayLike) -> Array:
    """Returns a view of the array's memory, or a new array for Python scalars and lists.

    Raises TypeError for element types that cannot be sent, ValueError for arrays that are not in
    CPU memory.
    """
    view: Array
    if type(array) is np.ndarray:
        view = array
    elif isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array cannot be sent: its mask would be lost; send its filled()")
    elif isinstance(array, np.ndarray):
        view = array
    elif isinstance(array, bytes):  # NumPy would make a string of it
        view = np.frombuffer(array, np.uint8)
    else:
        view = _from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    dtype_number(view.dtype)
    return view


def as_input(array: ArrayLike) -> Array:
    """Returns the array, copied unless it is row-major, aligned and in native byte order."""
    view = as_array(array)
    return view if is_plain(view) else view.astype(view.dtype.newbyteorder("="), order="C")


def is_plain(array: Array) -> bool:
    """Returns whether the engine can work on the array's memory as it is."""
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned and array.dtype.isnative)


def dtype_number(dtype: np.dtype[Any]) -> int:
    """Returns the number of a dtype in perseus.h; raises TypeError if the dtype cannot be sent."""
    number = _CACHED_NUMBERS.get(dtype)
    if number is None:
        number = _NUMBERS.get(dtype.name)
        if number is None:
            raise TypeError(
                f"arrays of dtype {dtype.name} cannot be sent; the dtype must be one of "
                f"{', '.join(_NUMBERS)}"
            )
        _CACHED_NUMBERS[dtype] = number
    return number


def from_result(result: _engine.Result, dtype: np.dtype[Any]) -> Array:
    """Returns the memory of a result as an array that owns it."""
    return np.asarray(result).view(dtype)


def _from_dlpack(array: ArrayLike) -> Array:
    device, _ = array.__dlpack_device__()
    if device not in (_CPU, _PINNED):
        raise ValueError(
            f"{type(array).__name__} is not in CPU memory (DLPack device type {int(device)}); "
            "only arrays in the memory of the CPU or of a CUDA GPU can be sent"
        )
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer older than DLPack 1
        capsule = array.__dlpack__()
    taken = _engine.DlpackArray(capsule)
    view: Array = np.asarray(taken)
    return view.view(bfloat16()) if taken.dtype == DataType.BFLOAT16 else view


def bfloat16() -> np.dtype[Any]:
    """Returns NumPy's bfloat16, from the package ml_dtypes; raises TypeError without it."""
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("NumPy has bfloat16 only with the package ml_dtypes") from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
