"""The memory of arrays that ranks which lack the state of a job get from those that have it."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np

from perseus.common.state_sources import Part, bytes_at
from perseus.mxnet.engine import NDArray

__all__ = ["part_of"]


def part_of(array: NDArray) -> Part | None:
    """Returns an array's memory; None if it is on a GPU, sparse, or empty.

    MXNet does not know of what is written there: no operation may use the array meanwhile, so call
    mx.nd.waitall() before. The array must outlive the part.
    """
    if array.stype != "default" or array.context.device_type == "gpu" or 0 in array.shape:
        return None
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    if address.value is None:
        return None
    dtype = np.dtype(array.dtype)
    size = dtype.itemsize * int(np.prod(array.shape, dtype=np.int64))
    return Part(f"{dtype} {array.shape}", bytes_at(address.value, size))
