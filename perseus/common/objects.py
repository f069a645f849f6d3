"""Python objects sent between the ranks, pickled by cloudpickle."""

from __future__ import annotations

from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

import perseus_core
from perseus.common.process_sets import ProcessSet, set_id
from perseus_core import OperationKind, refusals
from perseus_core.arguments import plain_text, whole_number

__all__ = ["allgather_object", "broadcast_object"]

Bytes = npt.NDArray[np.uint8]


def broadcast_object(obj: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    """Returns the root's object on every rank: the object itself on the root, elsewhere a copy.

    Args:
      root_rank: a rank of the world.
      name: what ranks match the call by; None for the order of their calls.
    """
    size_name, data_name = _names_of_parts(name)
    number = set_id(process_set)
    with refusals.refusing(OperationKind.BROADCAST, "broadcast", size_name, number):
        is_root = perseus_core.rank() == whole_number("root_rank", root_rank)
        payload = _pickled(obj) if is_root else _room_for(0)
    length = np.array([payload.size])
    perseus_core.broadcast(length, root_rank, name=size_name, process_set=number, out=length)
    with refusals.refusing(OperationKind.BROADCAST, "broadcast", data_name, number):
        if not is_root:
            payload = _room_for(int(length[0]))
    perseus_core.broadcast(payload, root_rank, name=data_name, process_set=number, out=payload)
    return obj if is_root else cloudpickle.loads(payload)


def allgather_object(obj: Any, name: str | None, process_set: ProcessSet) -> list[Any]:
    """Returns copies of the ranks' objects, in the order of the ranks."""
    size_name, data_name = _names_of_parts(name)
    number = set_id(process_set)
    with refusals.refusing(OperationKind.ALLGATHER, "allgather", size_name, number):
        payload = _pickled(obj)
    length = np.array([payload.size])
    lengths = perseus_core.allgather(length, name=size_name, process_set=number)
    gathered = perseus_core.allgather(payload, name=data_name, process_set=number)
    parts = np.split(gathered, np.cumsum(lengths)[:-1])
    return [cloudpickle.loads(part) for part in parts]


def _names_of_parts(name: str | None) -> tuple[str | None, str | None]:
    """Returns the names of the two operations that send an object: its size, and its bytes."""
    if name is None:
        return None, None
    plain_text("name", name)
    return f"{name}.sz", f"{name}.t"


def _pickled(obj: Any) -> Bytes:
    return np.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=np.uint8)


def _room_for(count: int) -> Bytes:
    return np.empty(count, np.uint8)
