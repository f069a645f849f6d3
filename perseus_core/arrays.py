"""Arrays of any kind in CPU memory as NumPy arrays over the same memory.

What is served: NumPy; whatever speaks DLPack in CPU memory (CuPy's pinned memory, JAX, PyTorch,
TensorFlow, ...); whatever speaks the buffer protocol or ``__array_interface__``; Python scalars.
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

#: What a call takes: see the module's head. Protocols cannot say it any closer.
ArrayLike: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]

_NUMBERS = {member.name.lower(): member.value for member in DataType}
# Of dtypes met before: their names take NumPy longer to tell than most of a call does.
_NUMBERS_MET: dict[np.dtype[Any], int] = {}
_CPU = 1
_PINNED = 3


def as_array(array: ArrayLike) -> Array:
    """A view of the array's memory, or for Python scalars and lists a new array.

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
    elif isinstance(array, bytes):  # which NumPy would take for a string
        view = np.frombuffer(array, np.uint8)
    else:
        view = _from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    dtype_number(view.dtype)
    return view


def as_input(array: ArrayLike) -> Array:
    """The array, copied only if it is not row-major, aligned and of the machine's byte order."""
    view = as_array(array)
    return view if is_plain(view) else view.astype(view.dtype.newbyteorder("="), order="C")


def is_plain(array: Array) -> bool:
    """Whether the engine can work on the array's memory as it is."""
    flags = array.flags
    return bool(flags.c_contiguous and flags.aligned and array.dtype.isnative)


def dtype_number(dtype: np.dtype[Any]) -> int:
    """The number of perseus.h for a dtype; TypeError names one that it does not have."""
    number = _NUMBERS_MET.get(dtype)
    if number is None:
        number = _NUMBERS.get(dtype.name)
        if number is None:
            raise TypeError(
                f"arrays of dtype {dtype.name} cannot be sent; it takes one of "
                f"{', '.join(_NUMBERS)}"
            )
        _NUMBERS_MET[dtype] = number
    return number


def from_result(result: _engine.Result, dtype: np.dtype[Any]) -> Array:
    """The memory of a result, as an array that owns it."""
    return np.asarray(result).view(dtype)


def _from_dlpack(array: ArrayLike) -> Array:
    device, _ = array.__dlpack_device__()
    if device not in (_CPU, _PINNED):
        raise ValueError(
            f"{type(array).__name__} is not in CPU memory (DLPack device type {int(device)}); "
            "only arrays in the memory of CPUs, and of GPUs that CUDA speaks to, can be sent"
        )
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer older than DLPack 1
        capsule = array.__dlpack__()
    taken = _engine.DlpackArray(capsule)
    view: Array = np.asarray(taken)
    return view.view(bfloat16()) if taken.dtype == DataType.BFLOAT16 else view


def bfloat16() -> np.dtype[Any]:
    """NumPy's bfloat16, which the package ml_dtypes has; TypeError without it."""
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("NumPy has bfloat16 only with the package ml_dtypes") from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
