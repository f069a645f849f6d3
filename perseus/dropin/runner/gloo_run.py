"""The parts of Horovod's launcher without MPI that programs import or replace."""

from __future__ import annotations

import signal
import threading
from typing import Any

from perseus.dropin.runner.common.util.hosts import SlotInfo

__all__ = ["create_slot_env_vars", "register_shutdown_event"]


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """Returns the variables of Horovod's that tell a process its place."""
    return {
        "HOROVOD_HOSTNAME": slot_info.hostname,
        "HOROVOD_RANK": str(slot_info.rank),
        "HOROVOD_SIZE": str(slot_info.size),
        "HOROVOD_LOCAL_RANK": str(slot_info.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot_info.local_size),
        "HOROVOD_CROSS_RANK": str(slot_info.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot_info.cross_size),
    }


def register_shutdown_event() -> threading.Event:
    """Returns an event that SIGINT and SIGTERM set from now on. Call it in the main thread."""
    event = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: event.set())
    return event


def _get_min_start_hosts(settings: Any) -> int:
    """Returns how many hosts an elastic job waits for at first, which tests replace.

    Horovod needs two to find out which interfaces they have in common; ranks here do not.
    """
    return 1
