"""As much of CuPy as perseus_core calls, over the stand-in for CUDA."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from standin_gpu import Gpu, InterfaceArray


class Array(InterfaceArray):
    """In memory of CuPy's own."""

    device = contextlib.nullcontext()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        return self._dtype


Array.__module__ = "cupy"


class View:
    """A view of memory that something else owns."""

    device = contextlib.nullcontext()

    def __init__(self, gpu: Gpu, owner: Any) -> None:
        interface = owner.__cuda_array_interface__
        self.gpu = gpu
        self.owner = owner
        self.address, _ = interface["data"]
        self.shape, self.dtype = interface["shape"], np.dtype(interface["typestr"])
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize

    def copy(self) -> Array:
        copied = Array(self.gpu, np.zeros(self.shape, self.dtype))
        target, source = ctypes.c_ulonglong(copied.address), ctypes.c_ulonglong(self.address)
        size, stream = ctypes.c_size_t(self.nbytes), ctypes.c_void_p(self.gpu.stream)
        self.gpu.in_context("cuMemcpyDtoDAsync_v2", target, source, size, stream)
        return copied


class Cupy(ModuleType):
    def __init__(self, gpu: Gpu) -> None:
        super().__init__("cupy")
        self.gpu = gpu
        #: calls of asarray
        self.views = 0
        stream = SimpleNamespace(ptr=gpu.stream)
        self.cuda = SimpleNamespace(get_current_stream=lambda: stream)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return Array(self.gpu, np.zeros(shape, dtype))

    def asarray(self, owner: Any) -> View:
        self.views += 1
        return View(self.gpu, owner)


@contextlib.contextmanager
def cupy_on(gpu: Gpu) -> Iterator[Cupy]:
    """CuPy is imported meanwhile."""
    module = sys.modules["cupy"] = Cupy(gpu)
    try:
        yield module
    finally:
        del sys.modules["cupy"]
