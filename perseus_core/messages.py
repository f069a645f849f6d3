"""Messages between two ranks.

    if perseus.rank() == 0:
        perseus.send(activations, 1, tag=step)
    else:
        activations, source, tag = perseus.recv(0, tag=step)

Unlike collectives, messages need no agreement and no name: a rank sends to one other, and that one
receives. Any number may be under way, in any order. Messages from one rank that a receive could
take are taken in the order in which they were sent. A message carries its shape and dtype, so that
a receiver need not know them.

A rank keeps messages that come before they are asked for, up to PERSEUS_MESSAGE_CREDIT for each
sender. Larger ones wait for their receive. So two ranks may send to each other first.

Arrays are what perseus_core.arrays takes, or perseus_core.gpu_arrays if they are on a GPU; the two
ends of a message may differ in this. Those on a GPU travel by way of the host's memory. Ranks are
those of the world; both must belong to the process set, and messages of one set are never taken for
those of another.

A codec makes float32 messages to other ranks smaller. Only the sender names it: the message says
how it is encoded.

Errors: ValueError or TypeError for a mistake that is found on this rank; MismatchError if the other
rank has made one, or a message does not fit `out`, also for a send that is not complete;
AbortedError if the other rank leaves or dies before it has done its part. The job can go on after a
mistake or a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from perseus_core import _engine, callbacks, gpu_arrays
from perseus_core.arguments import number_or_any, whole_number
from perseus_core.arrays import (
    Array,
    ArrayLike,
    as_array,
    as_input,
    bfloat16,
    dtype_number,
    is_plain,
)
from perseus_core.constants import WORLD, DataType
from perseus_core.engine import Place
from perseus_core.handle import Handle
from perseus_core.refusals import refuse_message

__all__ = ["Message", "irecv", "isend", "recv", "send"]


class Message(NamedTuple):
    """A message that has come."""

    array: Array
    source: int  # the rank that sent it
    tag: int


def send(
    array: ArrayLike,
    dest: int,
    *,
    tag: int = 0,
    process_set: int = WORLD,
    priority: int = 0,
    codec: int = 0,
) -> None:
    """Sends an array to one rank, and returns once the array may be used again.

    Args:
      dest: a rank of the world; may be this one.
      tag: 0 to 2**31 - 1; the receiver may ask for it.
      priority: higher goes first.
      codec: from find_codec, for float32 arrays; ValueError for others. 0: none.
    """
    isend(array, dest, tag=tag, process_set=process_set, priority=priority, codec=codec).wait()


def isend(
    array: ArrayLike,
    dest: int,
    *,
    tag: int = 0,
    process_set: int = WORLD,
    priority: int = 0,
    codec: int = 0,
    callback: Callable[[Handle[None]], object] | None = None,
) -> Handle[None]:
    """Starts a send. Until it is complete the array must not change. See send.

    Args:
      callback: called with the Handle once the send is complete, on a thread of Perseus.
    """
    ends = (
        whole_number("process_set", process_set),
        whole_number("dest", dest),
        whole_number("tag", tag),
    )
    handle: Handle[None] = Handle(lambda number: None)
    try:
        source = _Source(array)
        codec = whole_number("codec", codec)
        complete = None if callback is None else callbacks.completion(handle, callback)
    except Exception as error:
        refuse_message(True, *ends, error)
        raise
    handle.submitted(
        _engine.send(
            *ends,
            source.keep,
            source.address,
            source.shape,
            source.dtype,
            whole_number("priority", priority),
            complete,
            codec,
            *source.place,
        )
    )
    return handle


def recv(
    source: int | None = None,
    *,
    tag: int | None = None,
    out: ArrayLike = None,
    process_set: int = WORLD,
) -> Message:
    """Receives a message.

    Args:
      source: the rank of the world that sends it; None: any of the set.
      tag: None: any below 2**30, where the tags of libraries begin.
      out: gets the message, which must have its dtype and number of elements. None: a new array of
        the message's shape and dtype.
    """
    return irecv(source, tag=tag, out=out, process_set=process_set).wait()


def irecv(
    source: int | None = None,
    *,
    tag: int | None = None,
    out: ArrayLike = None,
    process_set: int = WORLD,
    callback: Callable[[Handle[Message]], object] | None = None,
) -> Handle[Message]:
    """Starts a receive; the Handle gives the Message. See recv and isend."""
    ends = (
        whole_number("process_set", process_set),
        number_or_any("source", source, _engine.ANY_RANK),
        number_or_any("tag", tag, _engine.ANY_TAG),
    )
    try:
        target = _Anything() if out is None else _target(out)
        handle: Handle[Message] = Handle(target.finish)
        complete = None if callback is None else callbacks.completion(handle, callback)
    except Exception as error:
        refuse_message(False, *ends, error)
        raise
    handle.submitted(
        _engine.recv(
            *ends,
            target,
            target.address,
            target.shape,
            target.dtype,
            0,
            complete,
            0,
            *target.place,
        )
    )
    return handle


class _Source:
    """What is sent, and an object that keeps it alive."""

    __slots__ = ("address", "dtype", "keep", "place", "shape")

    def __init__(self, array: ArrayLike) -> None:
        self.keep: object
        self.place: Place | tuple[()] = ()
        if gpu_arrays.is_on_gpu(array):
            memory, self.place = gpu_arrays.memory_of(array)
            self.keep, self.address = memory, memory.address
            self.shape, self.dtype = memory.shape, memory.dtype
        else:
            source = as_input(array)
            self.keep, self.address = source, _engine.array_address(source)
            self.shape, self.dtype = source.shape, dtype_number(source.dtype)


class _Anything:
    """Where a receive goes that takes whatever comes: into a new array."""

    address = 0
    shape = None
    dtype = 0
    place = ()

    def finish(self, number: int) -> Message:
        source, tag = _engine.message_of(number)
        result = _engine.Result(number)
        type = DataType(result.dtype)
        dtype = bfloat16() if type == DataType.BFLOAT16 else np.dtype(type.name.lower())
        return Message(np.asarray(result).view(dtype).reshape(result.shape), source, tag)


class _Target:
    """The array of a receive. The engine writes into a copy of it if it is not plain memory."""

    place = ()

    def __init__(self, out: ArrayLike) -> None:
        self.wanted = as_array(out)
        if not self.wanted.flags.writeable:
            raise ValueError("out is read-only")
        plain = is_plain(self.wanted)
        dtype = self.wanted.dtype.newbyteorder("=")
        self.array = self.wanted if plain else np.empty(self.wanted.shape, dtype)
        self.address = _engine.array_address(self.array)
        self.shape = self.array.shape
        self.dtype = dtype_number(self.array.dtype)

    def finish(self, number: int) -> Message:
        if self.wanted is not self.array:
            self.wanted[...] = self.array
        return Message(self.wanted, *_engine.message_of(number))


class _GpuTarget:
    """The array of a receive, on a GPU."""

    def __init__(self, out: ArrayLike) -> None:
        self.wanted = out
        self.memory, self.place = gpu_arrays.memory_of(out)
        if self.memory.is_readonly:
            raise ValueError("out is read-only")
        self.address, self.shape = self.memory.address, self.memory.shape
        self.dtype = self.memory.dtype

    def finish(self, number: int) -> Message:
        return Message(self.wanted, *_engine.message_of(number))


def _target(out: ArrayLike) -> _Target | _GpuTarget:
    return _GpuTarget(out) if gpu_arrays.is_on_gpu(out) else _Target(out)
