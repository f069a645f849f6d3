"""send and recv of torch.distributed, by the engine's messages between two ranks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch

from perseus.torch.c10d_operations import Operations
from perseus.torch.c10d_work import PerseusWork
from perseus.torch.horovod.tensors import dtype_number, is_known, place_of
from perseus.torch.row_major import row_major
from perseus_core import DataType, callbacks, engine
from perseus_core.refusals import refuse_message

__all__ = ["receive", "send"]

_BYTE = int(DataType.UINT8)

#: The shape and the number of the dtype of a message.
Form = tuple[tuple[int, ...], int]


class MessageWork(PerseusWork):
    """A message that is being sent or received."""

    def __init__(
        self, what: str, operations: Operations, timeout: timedelta, source: list[int]
    ) -> None:
        """`source` has the rank in the group that sends the message, once that is known."""
        super().__init__(what, operations, timeout)
        self._source = source

    def source_rank(self) -> int:
        """Returns the rank in the group that has sent the message; -1 if none has yet."""
        return self._source[0] if self._source else -1

    _source_rank = source_rank


def send(
    tensor: torch.Tensor,
    process_set: int,
    peer: int,
    tag: int,
    timeout: timedelta,
    rank: int,
) -> MessageWork:
    """Starts to send the tensor's elements, in one dimension.

    Args:
      peer: a rank of the world.
      timeout: the default limit of the work's wait.
      rank: this rank in the group.
    """
    try:
        buffer = _in_order(tensor)
    except Exception as error:
        refuse_message(True, process_set, peer, tag, error)
        raise
    what = f"the send to rank {peer} with tag {tag}"
    operations = Operations(lambda handles: None, [tensor])
    return _begin(engine.send, what, operations, (process_set, peer, tag), buffer, timeout, [rank])


def receive(
    tensor: torch.Tensor,
    process_set: int,
    peer: int | None,
    tag: int,
    timeout: timedelta,
    place: Callable[[int], int],
) -> MessageWork:
    """Starts to receive into the tensor, from any rank if `peer` is None.

    Args:
      place: gives the rank in the group of a rank of the world.
    """
    source: list[int] = [] if peer is None else [place(peer)]
    sender = engine.ANY_RANK if peer is None else peer
    try:
        buffer = _in_order(tensor)
    except Exception as error:
        refuse_message(False, process_set, sender, tag, error)
        raise

    def finish(handles: list[int]) -> None:
        source[:] = [place(engine.message_of(handles[0])[0])]
        if buffer.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(buffer)

    what = f"the recv from {'any rank' if peer is None else f'rank {peer}'} with tag {tag}"
    operations = Operations(finish, [tensor])
    return _begin(
        engine.recv, what, operations, (process_set, sender, tag), buffer, timeout, source
    )


def _begin(
    begin: Callable[..., int],
    what: str,
    operations: Operations,
    ends: tuple[int, int, int],
    buffer: torch.Tensor,
    timeout: timedelta,
    source: list[int],
) -> MessageWork:
    callbacks.start()
    callback = engine.LateCallback()
    work = MessageWork(what, operations, timeout, source)
    try:
        place = place_of([buffer]) or ()
        handle = begin(*ends, buffer, buffer.data_ptr(), *_form(buffer), 0, callback, 0, *place)
    except Exception as error:
        operations.error = error
        operations.ended = True
        raise
    operations.add(handle, callback)
    return work


def _form(buffer: torch.Tensor) -> Form:
    """Returns how the message is described, which both ends must agree in.

    The engine does not know complex numbers and the like; these go as bytes.
    """
    if is_known(buffer.dtype):
        return (buffer.numel(),), dtype_number(buffer)
    return (buffer.nbytes,), _BYTE


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the row-major tensor itself, or a copy; ValueError if it is on an unknown device."""
    place_of([tensor])
    return row_major(tensor)
