"""Lets torch.distributed change the time-out of groups of Perseus.

Its function for that looks for the groups of Gloo and NCCL only, and ignores all others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

__all__ = ["serve"]

_NAME = "_set_pg_timeout"


def serve(group_type: type[Any]) -> None:
    """Makes torch.distributed's function serve groups of this type, which have set_timeout."""
    theirs: Callable[..., None] | None = getattr(dist.distributed_c10d, _NAME, None)
    if theirs is None:  # this PyTorch has no such function
        return

    @functools.wraps(theirs)
    def set_pg_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        chosen = dist.distributed_c10d._get_default_group() if group is None else group
        if isinstance(chosen, group_type):
            chosen.set_timeout(timeout)
        else:
            theirs(timeout, group)

    setattr(dist.distributed_c10d, _NAME, set_pg_timeout)
