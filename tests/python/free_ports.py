"""Ports at which a process that a test starts is to listen later."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

from perseus.run.free_port import assigned_ports


def find_free_ports(count: int, step: int = 1) -> list[int]:
    """Returns ports `step` apart that are free, as no other connection will take by chance."""
    assigned = assigned_ports()
    ports = [port for port in range(10000, 65535 - count * step) if port not in assigned]
    for _ in range(1000):
        first = random.choice(ports)
        found = list(range(first, first + count * step, step))
        with ExitStack() as stack:
            try:
                for port in found:
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return found
    raise OSError(f"there are no {count} free ports")
