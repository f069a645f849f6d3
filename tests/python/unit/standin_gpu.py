"""Arrays on the GPUs of the stand-in for CUDA (tests/standin), by the driver's own calls."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

_NOT_READY = 600
_NON_BLOCKING = 1
_NO_TIMING = 2


class Gpu:
    """A GPU in use by this process, with a stream as a library would have. One thread."""

    def __init__(self, ordinal: int = 0) -> None:
        folder = os.environ["PERSEUS_CUDA_LIBRARY_PATH"]
        self.driver = ctypes.CDLL(f"{folder}/libcuda.so.1")
        self.ordinal = ordinal
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.stream = self.new_stream()

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.driver, function)(*arguments)
        assert status == 0, f"{function} gives {status}"

    def in_context(self, function: str, *arguments: Any, may_give: int = 0) -> int:
        self.call("cuCtxPushCurrent_v2", self.context)
        status: int = getattr(self.driver, function)(*arguments)
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        assert status in (0, may_give), f"{function} gives {status}"
        return status

    def new_stream(self) -> int:
        stream = ctypes.c_void_p()
        self.in_context("cuStreamCreateWithPriority", ctypes.byref(stream), _NON_BLOCKING, 0)
        assert stream.value
        return stream.value

    def new_event(self, stream: int) -> ctypes.c_void_p:
        """An event that is there once the stream has come to where it is."""
        event = ctypes.c_void_p()
        self.in_context("cuEventCreate", ctypes.byref(event), _NO_TIMING)
        self.in_context("cuEventRecord", event, ctypes.c_void_p(stream))
        return event

    def make_wait(self, later: int, earlier: int) -> None:
        """Makes later work of `later` wait for the work that `earlier` has been given."""
        event = self.new_event(earlier)
        self.in_context("cuStreamWaitEvent", ctypes.c_void_p(later), event, 0)
        self.in_context("cuEventDestroy_v2", event)

    def synchronize(self, stream: int) -> None:
        event = self.new_event(stream)
        while self.in_context("cuEventQuery", event, may_give=_NOT_READY) != 0:
            pass
        self.in_context("cuEventDestroy_v2", event)

    @contextlib.contextmanager
    def held_default_stream(self) -> Iterator[None]:
        """Within it, the legacy default stream does nothing further."""
        self.call("cuCtxPushCurrent_v2", self.context)
        self.driver.perseus_standin_hold(None)
        try:
            yield
        finally:
            self.driver.perseus_standin_release(None)
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        values = np.empty(shape, dtype)
        if values.nbytes:
            stream = ctypes.c_void_p(self.stream)
            target = values.ctypes.data_as(ctypes.c_void_p)
            source = ctypes.c_ulonglong(address)
            size = ctypes.c_size_t(values.nbytes)
            self.in_context("cuMemcpyDtoHAsync_v2", target, source, size, stream)
            self.synchronize(self.stream)
        return values


class GpuValues:
    """A row-major array on a GPU. Its values are there once its stream has come to it.

    It has no public attributes for its shape and type, which no protocol asks for.
    """

    def __init__(self, gpu: Gpu, values: Any) -> None:
        self.gpu = gpu
        self.values = np.ascontiguousarray(values).reshape(np.shape(values))  # until it is read
        self._shape, self._dtype = self.values.shape, self.values.dtype
        pointer = ctypes.c_ulonglong()
        if self.values.nbytes:
            size = ctypes.c_size_t(self.values.nbytes)
            gpu.in_context("cuMemAlloc_v2", ctypes.byref(pointer), size)
            source = self.values.ctypes.data_as(ctypes.c_void_p)
            stream = ctypes.c_void_p(gpu.stream)
            gpu.in_context("cuMemcpyHtoDAsync_v2", pointer, source, size, stream)
        self.address = pointer.value

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self.gpu.synchronize(self.gpu.stream)
            self.gpu.in_context("cuMemFree_v2", ctypes.c_ulonglong(self.address))

    def read(self) -> np.ndarray:
        return self.gpu.read(self.address, self._shape, self._dtype)


class InterfaceArray(GpuValues):
    """As Numba's and CuPy's, whose stream is told. `interface` replaces what else it says."""

    def __init__(self, gpu: Gpu, values: Any, **interface: Any) -> None:
        super().__init__(gpu, values)
        self.interface = interface

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = {
            "version": 3,
            "shape": self._shape,
            "typestr": self._dtype.str,
            "data": (self.address, False),
            "stream": self.gpu.stream,
        }
        return {**interface, **self.interface}


class _Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack 0, with room for a shape."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class DlpackArray(GpuValues):
    """Speaks DLPack alone. Its consumer's stream is made to wait for its own."""

    def __init__(self, gpu: Gpu, values: Any) -> None:
        super().__init__(gpu, values)
        # Lent memory lives as long as this object, which its consumers keep.
        self.lent: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.gpu.ordinal

    def __dlpack__(self, *, stream: int) -> Any:
        self.gpu.make_wait(0 if stream == 1 else stream, self.gpu.stream)
        extents = (ctypes.c_int64 * 8)(*self._shape)
        code = _CODES.get(self._dtype.kind, 4) if self._dtype.name != "bfloat16" else 4
        tensor = _Tensor(
            data=self.address,
            device_type=2,
            device_id=self.gpu.ordinal,
            rank=len(self._shape),
            code=code,
            bits=self._dtype.itemsize * 8,
            lanes=1,
            shape=extents,
        )
        self.lent += extents, tensor
        return _new_capsule(ctypes.addressof(tensor), b"dltensor", None)
