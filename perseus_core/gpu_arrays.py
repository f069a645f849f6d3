"""Arrays in the memory of GPUs, as inputs of operations and for their results.

It supports arrays with ``__cuda_array_interface__`` (CuPy, Numba), and those that speak DLPack
on a CUDA GPU (CuPy, PyTorch, JAX, ...). bfloat16 is passed by DLPack only. Arrays must be
row-major: if a copy on the GPU is needed, the library that made the array has to make it.

An operation waits for the work that is in the array's stream at the time of the call. That is the
stream that the array interface names, or for DLPack a stream that the producer makes wait. If an
interface of version 3 names no stream, there is nothing to wait for. Older interfaces do not
mention streams, so the operation waits for the legacy default stream. Once the operation is
complete, every stream can use its results.

Results for arrays of CuPy and PyTorch go into memory of these libraries, which know its streams and
reuse it: directly if the size is known before, otherwise by a copy. A large result, or one for
another library, stays in the engine's memory. When that memory is freed, CUDA waits until the GPU
is idle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from perseus_core import _engine
from perseus_core.arrays import ArrayLike, bfloat16, dtype_number
from perseus_core.constants import DataType
from perseus_core.engine import Operand, Place

__all__ = ["CUDA", "GpuArray", "GpuPair", "is_on_gpu", "lone_input", "memory_of", "pairs"]

#: PERSEUS_CUDA
CUDA = 1

_DLPACK_GPU = (2, 13)  # kDLCUDA, kDLCUDAManaged
_LEGACY_STREAM = 1  # its number in the protocols; calls of CUDA also accept 0
_ANY_GPU = -1  # the engine finds out where the memory is
# A result of at most this many bytes is copied, and the engine keeps its memory for the next one.
_MOST_COPIED = 64 << 20


def is_on_gpu(array: ArrayLike) -> bool:
    """Returns whether an array says that it is in the memory of a GPU."""
    if isinstance(array, np.ndarray):
        return False
    device = getattr(array, "__dlpack_device__", None)
    if device is not None:
        return int(device()[0]) in _DLPACK_GPU
    return hasattr(array, "__cuda_array_interface__")


class GpuArray:
    """A result on a GPU, for any library that reads ``__cuda_array_interface__`` or DLPack.

    Its memory lives until this object, and every array made from it, are gone.
    """

    def __init__(self, result: _engine.Result) -> None:
        self._result = result

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""
        return self._result.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype; raises TypeError for bfloat16 without the package ml_dtypes."""
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
        # Without this, NumPy would make an array that holds this object.
        raise TypeError(f"the array is on GPU {self.device_index}, which NumPy cannot read")

    def __repr__(self) -> str:
        name = DataType(self._result.dtype).name.lower()
        return f"GpuArray({name}{list(self.shape)} on GPU {self.device_index})"


class GpuPair:
    """An input on a GPU, and the array for its result: the caller's, or one of the engine's."""

    __slots__ = ("_library", "_out", "_source", "_target", "place")

    def __init__(
        self,
        array: ArrayLike,
        out: ArrayLike,
        source: Memory,
        target: Memory | None,
        place: Place,
    ) -> None:
        #: where the tensors of the operation are
        self.place = place
        self._library = _library_of(array)
        self._out = out
        self._source = source
        self._target = target

    def check_out(self) -> None:
        """Raises ValueError unless the array for the result is like the input, and writable."""
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
        """Returns the result of the complete operation, in which this is tensor `index`."""
        if self._target is not None:
            return self._out
        return self.given(_engine.Result(number, index))

    def given(self, result: _engine.Result) -> Any:
        """Returns a result in the engine's memory as an array of the input's library.

        That is a GpuArray for a library other than CuPy and PyTorch.
        """
        library: Any = sys.modules.get(self._library)
        if self._library == "cupy":
            # asarray supports more types than DLPack in CuPy does.
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
    """Returns a result in the engine's memory as a PyTorch tensor: a copy, unless it is large."""
    torch: Any = sys.modules["torch"]
    if result.dtype == DataType.BOOL:  # DLPack in PyTorch 2.1 does not have it
        tensor = torch.from_dlpack(result.as_uint8()).view(torch.bool)
    else:
        tensor = torch.from_dlpack(result)
    if tensor.nbytes > _MOST_COPIED:
        return tensor
    result.free_on_stream(torch.cuda.current_stream(tensor.device).cuda_stream)
    return tensor.clone()


def pairs(arrays: Sequence[ArrayLike], outs: Sequence[ArrayLike]) -> list[GpuPair]:
    """Returns the tensors of one operation; an entry of `outs` may be None.

    Raises ValueError unless all arrays are row-major and on one GPU, TypeError for element types
    that cannot be sent.
    """
    made = _made(
        arrays,
        [_empty(array) if out is None else out for array, out in zip(arrays, outs, strict=True)],
    )
    for pair, out in zip(made, outs, strict=True):
        if out is not None:
            pair.check_out()
    return made


def lone_input(array: ArrayLike, rows_of_result: Callable[[int], int | None]) -> GpuPair:
    """Returns the tensor of an operation whose result has another number of rows.

    Args:
      rows_of_result: maps the input's number of rows to the result's, or to None if that is not
        known before the operation is complete.

    Raises what `pairs` raises.
    """
    return _made([array], [_empty(array, rows_of_result)])[0]


def memory_of(array: ArrayLike) -> tuple[Memory, Place]:
    """Returns the memory of one array, and where it is; raises what `pairs` raises."""
    interface = _interface(array)
    stream = _common_stream([interface])
    memory = _memory(array, interface, stream)
    return memory, (CUDA, memory.index, 0 if stream == _LEGACY_STREAM else stream)


def _made(arrays: Sequence[ArrayLike], outs: Sequence[ArrayLike]) -> list[GpuPair]:
    given = [*arrays, *(out for out in outs if out is not None)]
    interfaces = [_interface(array) for array in given]
    stream = _common_stream(interfaces)
    memories = [
        _memory(array, interface, stream)
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


def _empty(array: ArrayLike, rows_of_result: Callable[[int], int | None] | None = None) -> Any:
    """Returns an array of the same library, type and GPU, with as many rows unless told otherwise.

    Returns None for an unknown library, whose arrays may have nothing but a protocol, and where the
    number of rows is not known.

    The memory may still be in use by earlier work of its library's stream. So call this before
    asking for the stream that the operation waits for.
    """
    library = _library_of(array)
    if library not in ("cupy", "torch"):
        return None
    shape = tuple(array.shape)
    if rows_of_result is not None:
        rows = rows_of_result(shape[0]) if shape else None
        if rows is None:
            return None
        shape = (rows, *shape[1:])
    if library == "torch":
        return array.new_empty(shape)
    with array.device:
        return sys.modules["cupy"].empty(shape, array.dtype)


class Memory:
    """The memory of an array, and an object that keeps it alive."""

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
        # Needed until the operation is complete: the GPU is then done with the memory.
        self.keep = keep

    def __str__(self) -> str:
        return f"{DataType(self.dtype).name.lower()}{list(self.shape)}"


def _interface(array: ArrayLike) -> Mapping[str, Any] | None:
    """Returns the array's interface for CUDA; None if DLPack is the better choice."""
    if not is_on_gpu(array):
        raise ValueError(
            f"{type(array).__name__} is in CPU memory, other arrays of the operation on a GPU; "
            "all must be in the same"
        )
    has_dlpack = hasattr(array, "__dlpack__")
    try:
        interface: Mapping[str, Any] = array.__cuda_array_interface__
    except Exception:  # PyTorch's raises if a gradient is required; DLPack then gives the reason
        if has_dlpack:
            return None
        raise
    # Versions before 3 do not name a stream, and no version has bfloat16.
    has_type = np.dtype(interface["typestr"]).kind != "V"
    return interface if not has_dlpack or (interface["version"] >= 3 and has_type) else None


def _common_stream(interfaces: Sequence[Mapping[str, Any] | None]) -> int:
    """Returns the stream to wait for, by its number in the protocols, or NO_STREAM."""
    told = (interface.get("stream") for interface in interfaces if interface is not None)
    streams = {
        int(stream) for stream in told if stream is not None
    }  # None: there is nothing to wait for
    if len(streams) > 1:
        raise ValueError(
            f"the arrays of an operation are in use by {len(streams)} streams; an operation can "
            "wait for one of them only: synchronize the others"
        )
    if 0 in streams:
        raise ValueError("an array names stream 0, which __cuda_array_interface__ does not allow")
    if streams:
        return streams.pop()
    # A producer of DLPack needs a stream to make wait; older interfaces ignore streams.
    are_ready = all(interface and interface["version"] >= 3 for interface in interfaces)
    return _engine.NO_STREAM if are_ready else _LEGACY_STREAM


def _common_index(memories: Sequence[Memory]) -> int:
    indexes = sorted({memory.index for memory in memories} - {_ANY_GPU})
    if len(indexes) > 1:
        raise ValueError(
            f"arrays of one operation are on GPU {indexes[0]} and GPU {indexes[1]}; all must be on "
            "the same"
        )
    return indexes[0] if indexes else _ANY_GPU


def _memory(array: ArrayLike, interface: Mapping[str, Any] | None, stream: int) -> Memory:
    if interface is None:
        return _from_dlpack(array, stream)
    return _from_interface(array, interface)


def _from_interface(array: ArrayLike, interface: Mapping[str, Any]) -> Memory:
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
    return Memory(int(address or 0), shape, number, index, bool(is_readonly), array)


def _from_dlpack(array: ArrayLike, stream: int) -> Memory:
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # a producer older than DLPack 1
        capsule = array.__dlpack__(stream=stream)
    taken = _engine.DlpackArray(capsule)
    if taken.strides is not None:
        _check_row_major(array, taken.shape, taken.strides, 1)
    return Memory(
        taken.address, taken.shape, taken.dtype, taken.device_index, taken.readonly, (array, taken)
    )


def _check_row_major(
    array: ArrayLike, shape: Sequence[int], strides: Sequence[int], unit: int
) -> None:
    """Raises ValueError unless the strides, counted in `unit`s, are those of a row-major array."""
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
