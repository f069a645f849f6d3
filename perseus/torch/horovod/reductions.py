"""Reductions of gradients in place: of one, or of several as one operation."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from perseus.common.stacklevel import user_stacklevel
from perseus.torch.horovod import handles
from perseus.torch.horovod.compression import Compressor, NoneCompressor
from perseus.torch.horovod.tensors import copy, described, dtype_number, in_memory
from perseus.torch.row_major import is_row_major, row_major
from perseus_core import HorovodInternalError, engine


class Reduction:
    """Reduces gradients in place, under the name that is registered as `id`.

    start() starts the reduction of a step. Calling the object waits for the results and stores them
    in the gradients. The object is used for all steps: new objects for each of thousands of
    gradients, which live until all are reduced, would make Python's garbage collector run often.
    """

    __slots__ = ("_compression", "_id", "_members", "_options", "handle")

    def __init__(
        self,
        id: int,
        members: Sequence[str],
        priority: int,
        op: int,
        prescale: float,
        postscale: float,
        compression: type[Compressor],
    ) -> None:
        self._id = id
        self._members = members
        self._compression = compression
        self._options = (op, prescale, postscale, priority)


class DenseReduction(Reduction):
    """Reduces one gradient."""

    __slots__ = ("_address", "_buffer", "_ctx", "_grad", "_version")

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._grad: torch.Tensor | None = None
        self._buffer: torch.Tensor | None = None
        self._ctx: Any = None

    def start(self, grads: list[torch.Tensor]) -> None:
        """Starts to reduce a gradient; the previous reduction must be finished."""
        (grad,) = grads
        if self._compression is NoneCompressor and is_row_major(grad):
            buffer, self._buffer = grad, None
        else:
            buffer, self._ctx = _compressed(grad, self._compression)
            self._buffer = buffer
        operand, place = in_memory(buffer, buffer, dtype_number(buffer))
        # Keeps the memory alive, whatever happens to the gradient.
        memory = buffer.untyped_storage()
        self.handle = engine.submit_allreduce(self._id, memory, *operand, *self._options, *place)
        handles.track(self.handle, memory)
        self._address = operand[0]
        self._grad = grad
        self._version = grad._version

    def __call__(self) -> None:
        """Waits for the result and stores it in the gradient."""
        grad, buffer, self._grad, self._buffer = self._grad, self._buffer, None, None
        memory = handles.finish(self.handle)
        if buffer is not None:
            copy(grad, self._compression.decompress(buffer, self._ctx))
        else:
            _put_in_place(grad, self._address, memory, self._version, self._members[0])


class GroupReduction(Reduction):
    """Reduces several gradients as one operation."""

    __slots__ = ("_addresses", "_buffers", "_grads", "_versions")

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._grads: list[torch.Tensor] = []
        #: by position: the tensor that is reduced in place of a gradient, and the context to
        #: decompress it
        self._buffers: dict[int, tuple[torch.Tensor, Any]] = {}

    def start(self, grads: list[torch.Tensor]) -> None:
        """Starts to reduce gradients; the previous reduction must be finished."""
        compresses = self._compression is not NoneCompressor
        self._buffers = {
            i: _compressed(grad, self._compression)
            for i, grad in enumerate(grads)
            if compresses or not is_row_major(grad)
        }
        reduced = grads
        if self._buffers:
            reduced = [self._buffers.get(i, (grad,))[0] for i, grad in enumerate(grads)]
        tensors, place = described(reduced, reduced)
        op, prescale, postscale, priority = self._options
        # Keeps the memory alive, whatever happens to the gradients.
        memory = [tensor.untyped_storage() for tensor in reduced]
        self.handle = engine.submit(
            self._id,
            memory,
            tensors,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            priority=priority,
            place=place,
        )
        handles.track(self.handle, memory)
        self._addresses = [address for address, *_ in tensors]
        self._grads = grads
        self._versions = [grad._version for grad in grads]

    def __call__(self) -> None:
        """Waits for the results and stores them in the gradients."""
        grads, buffers, self._grads, self._buffers = self._grads, self._buffers, [], {}
        try:
            memory = handles.finish(self.handle)
        except HorovodInternalError as error:
            raise type(error)(self._naming(str(error))) from error
        for i, grad in enumerate(grads):
            if i in buffers:
                copy(grad, self._compression.decompress(*buffers[i]))
            else:
                _put_in_place(
                    grad, self._addresses[i], memory[i], self._versions[i], self._members[i]
                )

    def _naming(self, error: str) -> str:
        """Returns the engine's message with the names of parameters in place of their numbers."""
        return re.sub(
            r"tensor (\d+) of the group", lambda found: self._members[int(found[1])], error
        )


def _put_in_place(
    grad: torch.Tensor, address: int, memory: torch.UntypedStorage, version: int, name: str
) -> None:
    """Finishes a gradient that was reduced in place, and may have been moved or changed since."""
    if grad.data_ptr() != address:
        copy(grad, _tensor_at(address, memory, grad))
    elif grad._version != version and not grad._is_view():  # views share the counter of changes
        _warn_of_a_change(name)


def _tensor_at(address: int, memory: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Returns the tensor at an address in a storage, with the shape and type of another."""
    offset = (address - memory.data_ptr()) // like.element_size()
    return like.new_empty(0).set_(memory, offset, like.shape)


def _compressed(grad: torch.Tensor, compression: type[Compressor]) -> tuple[torch.Tensor, Any]:
    buffer, ctx = compression.compress(grad)
    return row_major(buffer), ctx


def _warn_of_a_change(name: str) -> None:
    warnings.warn(
        f"a gradient was changed in place while it was being reduced ({name}), so ranks may differ "
        "now: call optimizer.synchronize() before that, and step() within skip_synchronize()",
        stacklevel=user_stacklevel(),
    )
