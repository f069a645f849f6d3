"""Runs a function on real ranks, by perseus.run, whose launcher handles signals itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def run(
    function: Callable[..., T], args: Sequence[Any], num_proc: int, hosts: str | None = None
) -> list[T]:
    """Returns each rank's result. Raises SystemExit, as ending.by_exception, if a signal ended
    them."""
    # Pictures of what ranks have done are drawn where Perseus need not be (redraw.py).
    import perseus.run

    try:
        return perseus.run.run(function, args=args, num_proc=num_proc, hosts=hosts)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except RuntimeError as error:
        # "SIGTERM: ending 2 ranks"
        name = str(error).partition(":")[0]
        if name not in signal.Signals.__members__:
            raise
        sys.exit(128 + signal.Signals[name])
