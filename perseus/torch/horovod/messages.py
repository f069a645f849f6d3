"""Messages between two ranks, for pipelines and whatever else is no collective.

    hvd.send(activations, rank + 1, tag=batch)
    activations, source, tag = hvd.recv(source=rank - 1, tag=batch)

perseus_core.messages says how sends and receives find each other, what is kept for a rank that has
not asked yet, and which errors there are. The two ends may be on different devices. Tensors on a
GPU travel by way of the host's memory: they are read and written after the work that is in the
current CUDA stream, and a message is complete when the GPU is done with the tensor. Messages are
not differentiable.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.torch.horovod import handles
from perseus.torch.horovod.compression import Compression, Compressor
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.tensors import (
    checked,
    checked_target,
    contiguous,
    copied_back,
    dtype_number,
    place_of,
    take_result,
)
from perseus_core import engine, find_codec
from perseus_core.arguments import number_or_any, whole_number
from perseus_core.refusals import refuse_message

__all__ = ["Message", "irecv", "isend", "recv", "send"]


class Message(NamedTuple):
    """A message that has come."""

    tensor: torch.Tensor
    source: int  # the rank that sent it
    tag: int


@eager
def isend(
    tensor: torch.Tensor,
    dest: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    compression: type[Compressor] | str = Compression.none,
) -> int:
    """Starts to send the tensor, which must not change before the send is complete.

    Args:
      dest: a rank of the world that is in the set; may be this one.
      tag: 0 to 2**31 - 1; the receiver may ask for it.
      priority: higher goes first.
      compression: Compression.none, Compression.fp16, or the name of a codec, such as "bf16". It
        encodes a float32 tensor on its way to another rank, which need not be told.

    Returns a handle for poll and synchronize, which gives None. Raises ValueError for a codec that
    there is not, or that does not fit the tensor.
    """
    ends = set_id(process_set), whole_number("dest", dest), whole_number("tag", tag)
    try:
        number = dtype_number(checked(tensor))
        source = contiguous(tensor.detach())
        place = place_of([source]) or ()
        codec = _codec(compression)
    except Exception as error:
        refuse_message(True, *ends, error)
        raise
    handle = engine.send(
        *ends,
        source,
        source.data_ptr(),
        tuple(source.shape),
        number,
        whole_number("priority", priority),
        None,
        codec,
        *place,
    )
    return handles.track(handle, None)


@eager
def send(
    tensor: torch.Tensor,
    dest: int,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    compression: type[Compressor] | str = Compression.none,
) -> None:
    """Sends the tensor to one rank, and returns once it may be changed again. See isend."""
    handles.finish(isend(tensor, dest, tag, process_set, priority, compression))


@eager
def irecv(
    tensor: torch.Tensor | None = None,
    source: int | None = None,
    tag: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts to receive a message.

    Args:
      tensor: gets the message, which must have its dtype and number of elements. None: a new
        tensor in CPU memory, of the message's shape and dtype.
      source: the rank of the world that sends it; None: any of the set.
      tag: None: any.

    Returns a handle for poll and synchronize, which gives the Message.
    """
    ends = (
        set_id(process_set),
        number_or_any("source", source, engine.ANY_RANK),
        number_or_any("tag", tag, engine.ANY_TAG),
    )
    if tensor is None:
        handle = engine.recv(*ends, None, 0, None, 0, 0, None)
        return handles.track(
            handle, None, lambda done: Message(take_result(done), *engine.message_of(done))
        )
    wanted = tensor
    try:
        number = dtype_number(checked_target(wanted))
        buffer = contiguous(wanted.detach())
        place = place_of([buffer]) or ()
    except Exception as error:
        refuse_message(False, *ends, error)
        raise
    handle = engine.recv(
        *ends, buffer, buffer.data_ptr(), tuple(buffer.shape), number, 0, None, 0, *place
    )
    return handles.track(
        handle, None, lambda done: Message(copied_back(buffer, wanted), *engine.message_of(done))
    )


@eager
def recv(
    tensor: torch.Tensor | None = None,
    source: int | None = None,
    tag: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Message:
    """Receives a message. See irecv."""
    message: Message = handles.finish(irecv(tensor, source, tag, process_set))
    return message


def _codec(compression: type[Compressor] | str) -> int:
    if compression is Compression.none:
        return 0
    if compression is Compression.fp16:
        return find_codec("fp16")
    if isinstance(compression, str):
        return find_codec(compression)
    raise TypeError(
        f"compression is {compression!r}; it must be Compression.none, Compression.fp16 or the "
        "name of a codec, since a receiver is not told how another class decompresses"
    )
