"""Submission of an operation under its name: the step that every collective call ends with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perseus_core import _engine
from perseus_core.arguments import plain_text
from perseus_core.constants import OperationKind
from perseus_core.names import last_handles, lock, next_unnamed
from perseus_core.refusals import refuse

__all__ = ["submit"]


def submit(
    kind: OperationKind,
    prefix: str,
    name: str | None,
    process_set: int,
    keep: object,
    send: Callable[..., int],
    *arguments: Any,
    **options: Any,
) -> int:
    """Registers `<prefix>.<name>`, calls send(id, keep, ...) and returns the handle it gives.

    Never waits for other ranks, except as `names.next_unnamed` does. Any thread may call it.

    Args:
      kind: the kind of operation, a part of what ranks match it by.
      prefix: such as "allreduce"; operations of one kind may have several.
      name: what ranks match the operation by; None: they match unnamed calls by their order.
      process_set: the engine's number of a set.
      keep: owns the memory that the operation works on; the engine keeps it alive.
      send: perseus_core.engine.submit or submit_allreduce, or a function that submits by other
        means. `arguments` and `options` are passed to it.

    Raises TypeError or ValueError for a name that is not valid text, and what `send` raises. The
    other ranks are told of an error from `send` unless the engine has told them already.
    """
    # This does not call names.full_name, because a further call would slow every operation.
    if name is not None:
        text = f"{prefix}.{plain_text('name', name)}"
    else:
        text = next_unnamed(prefix, process_set)
    id = _engine.register(process_set, kind, text)
    try:
        handle = send(id, keep, *arguments, **options)
    except Exception as error:
        refuse(id, error)
        raise
    if name is None:
        with lock:
            last_handles[text, process_set] = handle
    return handle
