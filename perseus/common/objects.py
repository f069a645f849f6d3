"""Python objects sent between the ranks, pickled by cloudpickle.

Whoever can choose what a rank unpickles can have it run anything. So nothing is unpickled before
`perseus_core.proven` has proven which rank of this world has sent it, in this call.
"""

from __future__ import annotations

import io
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

import perseus_core
from perseus.common.process_sets import ProcessSet, set_id
from perseus_core import OperationKind, proven, refusals
from perseus_core.arguments import plain_text, whole_number

__all__ = ["allgather_object", "broadcast_object"]

Bytes = npt.NDArray[np.uint8]


def broadcast_object(obj: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    """Returns the root's object on every rank: the object itself on the root, elsewhere a copy.

    Args:
      root_rank: a rank of the world.
      name: what ranks match the call by; None for the order of their calls.

    Raises AbortedError, on every rank, if the object that a rank receives is not the root's.
    """
    call = _call("broadcast_object", name, process_set)
    with refusals.refusing(
        OperationKind.BROADCAST, "broadcast", call.length_name, call.process_set
    ):
        root = whole_number("root_rank", root_rank)
        is_root = perseus_core.rank() == root
        payload = _pickled(obj) if is_root else None
    received = call.broadcast(payload, root)
    return obj if is_root else cloudpickle.loads(received)


def allgather_object(obj: Any, name: str | None, process_set: ProcessSet) -> list[Any]:
    """Returns copies of the ranks' objects, in the order of the ranks.

    Raises AbortedError, on every rank, if the object that a rank receives is not the sender's.
    """
    call = _call("allgather_object", name, process_set)
    with refusals.refusing(
        OperationKind.ALLGATHER, "allgather", call.length_name, call.process_set
    ):
        payload = _pickled(obj)
    return [cloudpickle.loads(part) for part in call.allgather(payload)]


def _call(function: str, name: str | None, process_set: ProcessSet) -> proven.Call:
    if name is not None:
        plain_text("name", name)
    return proven.Call(function, name, set_id(process_set))


def _pickled(obj: Any) -> Bytes:
    """Returns the pickle, with room for a proof at its end."""
    file = io.BytesIO()
    cloudpickle.dump(obj, file)
    file.write(bytes(proven.PROOF_BYTES))
    return np.frombuffer(file.getbuffer(), np.uint8)
