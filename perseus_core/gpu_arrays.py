"""Arrays in the memory of GPUs, from which the engine takes them and to which results go.

What is served: whatever has ``__cuda_array_interface__`` (CuPy, Numba) or speaks DLPack from a GPU
that CUDA speaks to (CuPy, PyTorch, JAX, ...). bfloat16 comes by DLPack alone. Arrays must be
row-major: a copy on the GPU is the business of the library that made them.

An operation begins when the array's stream has come to where it is when the call is made: the one
that the array interface names, or for DLPack one that the producer makes wait. Where an interface
of version 3 names none, there is nothing to wait for; older ones say nothing of streams, and it
begins after the legacy default stream. When it is complete, its results are there for every stream.

Results of CuPy's and PyTorch's arrays go into memory of these libraries, which know its streams and
use it again: at once where the size is known before, else by a copy. What is large, or for other
libraries, stays in the engine's memory, at whose end CUDA waits until the GPU is idle.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perseus_core import _engine
from perseus_core.arrays import ArrayLike, bfloat16, dtype_number
from perseus_core.constants import DataType
from perseus_core.engine import Operand, Place

__all__ = ["CUDA", "GpuArray", "GpuPair", "is_on_gpu", "lone_input", "pairs"]

#: PERSEUS_CUDA
CUDA = 1

_DLPACK_GPU = (2, 13)  # kDLCUDA, kDLCUDAManaged
_LEGACY_STREAM = 1  # as the protocols number it; CUDA's calls have it as 0 as well
_ANY_GPU = -1  # the engine looks where the memory is
# Bytes up to which a result is copied, and the engine keeps its memory for the next.
_MOST_COPIED = 64 << 20


def is_on_gpu(array: ArrayLike) -> bool:
    """Whether an array lies in the memory of a GPU, by what it says itself."""
    if isinstance(array, np.ndarray):
        return False
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        return int(device()[0]) in _DLPACK_GPU
    return hasattr(array, "__cuda_array_interface__")


class GpuArray:
    """A result on a GPU, for any library that takes ``__cuda_array_interface__`` or DLPack.

    Its memory lives until this object and what was made of it are gone.
    """

    def __init__(self, result: _engine.Result) -> None:
        self._result = result

    @property
    def shape(self) -> tuple[int, ...]:
        return self._result.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """TypeError for bfloat16 without the package ml_dtypes."""
        number = DataType(self._result.dtype)
        return bfloat16() if number == DataType.BFLOAT16 else np.dtype(number.name.lower())

    @property
    def device_index(self) -> int:
        """The GPU's number in this process."""
        return self._result.device_index

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._result.__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self._result.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._result.__dlpack_device__()

    def __array__(self, *_: Any, **__: Any) -> Any:
        # NumPy would make an array of one object of it.
        raise TypeError(f"the array is on GPU {self.device_index}, which NumPy cannot read")

    def __repr__(self) -> str:
        name = DataType(self._result.dtype).name.lower()
        return f"GpuArray({name}{list(self.shape)} on GPU {self.device_index})"


class GpuPair:
    """An input on a GPU and where its result goes: an array of the caller's, or the engine's."""

    __slots__ = ("_library", "_out", "_source", "_target", "place")

    def __init__(
        self,
        array: ArrayLike,
        out: ArrayLike,
        source: _Memory,
        target: _Memory | None,
        place: Place,
    ) -> None:
        #: of the operation
        self.place = place
        self._library = _library_of(array)
        self._out = out
        self._source = source
        self._target = target

    def check_out(self) -> None:
        """ValueError unless the array for the result is like the input, and can be written."""
        source, target = self._source, self._target
        if target is None:
            return
        if target.is_readonly:
            raise ValueError("out is read-only")
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(f"out is {target}, the input {source}; they must be the same")

    def described(self) -> Operand:
        output = 0 if self._target is None else self._target.address
        source = self._source
        return source.address, output, source.shape, source.dtype

    def finish(self, number: int, index: int = 0) -> Any:
        """The result of the complete operation, of which this is tensor `index`."""
        if self._target is not None:
            return self._out
        return self.given(_engine.Result(number, index))

    def given(self, result: _engine.Result) -> Any:
        """A result in the engine's memory as an array of the library that the input is of, or a
        GpuArray."""
        library: Any = sys.modules.get(self._library)
        if self._library == "cupy":
            # asarray knows more types than CuPy's DLPack.
            is_plain = result.dtype != DataType.BFLOAT16
            array = library.asarray(result) if is_plain else library.from_dlpack(result)
            if array.nbytes > _MOST_COPIED:
                return array
            with array.device:
                result.free_on_stream(library.cuda.get_current_stream().ptr)
                return array.copy()
        if self._library == "torch":
            return in_torch(result)
        return GpuArray(result)


def in_torch(result: _engine.Result) -> Any:
    """A result in the engine's memory as a tensor of PyTorch's: a copy, unless it is large."""
    torch: Any = sys.modules["torch"]
    if result.dtype == DataType.BOOL:  # which the DLPack of PyTorch 2.1 does not know
        tensor = torch.from_dlpack(result.as_uint8()).view(torch.bool)
    else:
        tensor = torch.from_dlpack(result)
    if tensor.nbytes > _MOST_COPIED:
        return tensor
    result.free_on_stream(torch.cuda.current_stream(tensor.device).cuda_stream)
    return tensor.clone()


def pairs(arrays: Sequence[ArrayLike], outs: Sequence[ArrayLike]) -> list[GpuPair]:
    """The tensors of one operation, of which `outs` may be None.

    ValueError for arrays that are not row-major, on a GPU and all on the same one; TypeError for
    element types that cannot be sent.
    """
    made = _made(
        arrays,
        [
            _empty(array, array.shape) if out is None else out
            for array, out in zip(arrays, outs, strict=True)
        ],
    )
    for pair, out in zip(made, outs, strict=True):
        if out is not None:
            pair.check_out()
    return made


def lone_input(array: ArrayLike, rows: int | None = None) -> GpuPair:
    """The tensor of an operation whose result has so many rows; None: that is not known before.

    Raises what `pairs` does.
    """
    return _made([array], [None if rows is None else _empty(array, (rows, *array.shape[1:]))])[0]


def _made(arrays: Sequence[ArrayLike], outs: Sequence[ArrayLike]) -> list[GpuPair]:
    given = [*arrays, *(out for out in outs if out is not None)]
    interfaces = [_interface(array) for array in given]
    stream = _common_stream(interfaces)
    memories = [
        _from_dlpack(array, stream) if interface is None else _from_interface(array, interface)
        for array, interface in zip(given, interfaces, strict=True)
    ]
    index = _common_index(memories)
    place = CUDA, index, 0 if stream == _LEGACY_STREAM else stream
    targets = iter(memories[len(arrays) :])
    made = []
    for array, out, source in zip(arrays, outs, memories[: len(arrays)], strict=True):
        target = None if out is None else next(targets)
        made.append(GpuPair(array, out, source, target, place))
    return made


def _library_of(array: ArrayLike) -> str:
    return type(array).__module__.partition(".")[0]


def _empty(array: ArrayLike, shape: tuple[int, ...]) -> Any:
    """An array of the same library, type and GPU; None for a library that we do not know.

    The memory may be free only when its library's stream has come to where it is now, so this
    comes before the stream is asked for.
    """
    library = _library_of(array)
    if library == "torch":
        return array.new_empty(shape)
    if library == "cupy":
        with array.device:
            return sys.modules["cupy"].empty(shape, array.dtype)
    return None


class _Memory:
    """Where an array lies, and what keeps it there."""

    __slots__ = ("address", "dtype", "index", "is_readonly", "keep", "shape")

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: int,
        index: int,
        is_readonly: bool,
        keep: object,
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.index = index
        self.is_readonly = is_readonly
        # Until the operation is complete, which it is when the GPU is done with the memory.
        self.keep = keep

    def __str__(self) -> str:
        return f"{DataType(self.dtype).name.lower()}{list(self.shape)}"


def _interface(array: ArrayLike) -> Mapping[str, Any] | None:
    """The array's interface for CUDA; None where DLPack serves better."""
    if not is_on_gpu(array):
        raise ValueError(
            f"{type(array).__name__} is in CPU memory, other arrays of the operation on a GPU; "
            "all must be in the same"
        )
    has_dlpack = hasattr(array, "__dlpack__")
    try:
        interface: Mapping[str, Any] = array.__cuda_array_interface__
    except Exception:  # PyTorch's raises where a gradient is required, and DLPack says why
        if has_dlpack:
            return None
        raise
    # Before version 3 it does not tell of a stream. It has no bfloat16.
    has_type = np.dtype(interface["typestr"]).kind != "V"
    return interface if not has_dlpack or (interface["version"] >= 3 and has_type) else None


def _common_stream(interfaces: Sequence[Mapping[str, Any] | None]) -> int:
    """The stream to begin after, by the protocols' numbers; NO_STREAM: there is none."""
    told = (interface.get("stream") for interface in interfaces if interface is not None)
    streams = {int(stream) for stream in told if stream is not None}  # None: it is ready for all
    if len(streams) > 1:
        raise ValueError(
            f"the arrays of an operation are in use by {len(streams)} streams; it begins after "
            "one: synchronize the others"
        )
    if 0 in streams:
        raise ValueError("an array names stream 0, which __cuda_array_interface__ does not allow")
    if streams:
        return streams.pop()
    # DLPack's producers need one to make wait, and others may not have thought of streams.
    are_ready = all(interface and interface["version"] >= 3 for interface in interfaces)
    return _engine.NO_STREAM if are_ready else _LEGACY_STREAM


def _common_index(memories: Sequence[_Memory]) -> int:
    indexes = sorted({memory.index for memory in memories} - {_ANY_GPU})
    if len(indexes) > 1:
        raise ValueError(
            f"arrays of one operation are on GPU {indexes[0]} and GPU {indexes[1]}; all must be on "
            "the same"
        )
    return indexes[0] if indexes else _ANY_GPU


def _from_interface(array: ArrayLike, interface: Mapping[str, Any]) -> _Memory:
    if interface.get("mask") is not None:
        raise TypeError("a masked array cannot be sent: its mask would be lost")
    dtype = np.dtype(interface["typestr"])
    number = dtype_number(dtype)
    if not dtype.isnative:
        raise ValueError(f"{type(array).__name__} has the bytes of its elements swapped")
    shape = tuple(map(int, interface["shape"]))
    if (strides := interface.get("strides")) is not None:
        _check_row_major(array, shape, strides, dtype.itemsize)
    address, is_readonly = interface["data"]
    device = getattr(array, "__dlpack_device__", None)
    index = _ANY_GPU if device is None else int(device()[1])
    return _Memory(int(address or 0), shape, number, index, bool(is_readonly), array)


def _from_dlpack(array: ArrayLike, stream: int) -> _Memory:
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # a producer older than DLPack 1
        capsule = array.__dlpack__(stream=stream)
    taken = _engine.DlpackArray(capsule)
    if taken.strides is not None:
        _check_row_major(array, taken.shape, taken.strides, 1)
    return _Memory(
        taken.address, taken.shape, taken.dtype, taken.device_index, taken.readonly, (array, taken)
    )


def _check_row_major(
    array: ArrayLike, shape: Sequence[int], strides: Sequence[int], unit: int
) -> None:
    """ValueError unless the strides, in `unit`s, are those of a row-major array."""
    if 0 in shape:
        return
    step = unit
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            raise ValueError(
                f"{type(array).__name__} on a GPU is not contiguous (shape {list(shape)}, strides "
                f"{list(strides)}); give a contiguous copy, such as ascontiguousarray makes"
            )
        step *= extent
