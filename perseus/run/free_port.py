"""Ports that the system does not assign by itself, for where another user has taken all those.

csrc/base/free_port.h does the same for the engine. An agent imports this; it needs only the
standard library.
"""

from __future__ import annotations

import contextlib
import errno
import random
import secrets
import socket
from collections.abc import Iterator

_FIRST = 1024  # below it, ports are root's
_LAST = 65535
#: Linux' own choice, where it cannot be read.
_ASSIGNED = range(32768, 61000)
#: Below them are those of many services; above them there is room for those that count from it.
_FOR_RANK_0 = range(15000, 65000)


def assigned_ports() -> range:
    """Returns the ports from which the system takes one if a program leaves the choice to it."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first, last = map(int, file.read().split())
            return range(first, last + 1)
    return _ASSIGNED


def other_ports() -> Iterator[int]:
    """Yields each port above 1023 that the system does not assign, from a random one on."""
    assigned = assigned_ports()
    ports = [port for port in range(_FIRST, _LAST + 1) if port not in assigned]
    begin = random.randrange(len(ports)) if ports else 0
    yield from ports[begin:] + ports[:begin]


def secret_port(*, here: bool) -> int:
    """Returns a port at which rank 0 may listen later, and which nobody can know before it does.

    It is not held until then: other users see each port that is held, and whoever is first may
    listen there. As the system does not assign it, no other program gets it by chance.

    Args:
      here: rank 0 is on this machine, so the port is one that is free now.
    """
    assigned = assigned_ports()
    # Another machine may assign others than this one.
    ports = [port for port in _FOR_RANK_0 if port not in assigned and port not in _ASSIGNED]
    for _ in range(1000):
        port = secrets.choice(ports or assigned)
        if not here or _is_free(port):
            break
    return port


def listen_anywhere(address: str) -> socket.socket:
    """Returns a socket that listens at any port of an address; "": of all IPv4 addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    for port in other_ports():
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN)
    raise OSError(
        errno.EADDRINUSE,
        f"no port of {address or 'this host'} is free, neither those that the system assigns nor "
        "others: `ss -ltnp` shows who listens at them",
    )


def connect(where: tuple[str, int], seconds: float) -> socket.socket:
    """Connects; also if the system has no port left that it could assign to our end."""
    try:
        return socket.create_connection(where, seconds)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    for port in other_ports():
        try:
            return socket.create_connection(where, seconds, source_address=("", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise
    raise OSError(
        errno.EADDRNOTAVAIL, "no port of this host is free: `ss -tanp` shows who has them"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
