"""The address at which other hosts reach the launcher."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence

_SIOCGIFADDR = 0x8915


def address_toward(host: str) -> str:
    """Returns our address from which packets to `host` leave; ValueError if there is none."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise ValueError(f"host '{host}' cannot be resolved: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        try:
            # Connecting a datagram socket sends nothing; it asks the routing table.
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    raise ValueError(f"there is no route to host '{host}'")


def address_of_interface(names: Sequence[str]) -> str:
    """Returns the IPv4 address of the first interface that has one. ValueError if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            try:
                request = struct.pack("256s", name.encode()[:15])
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            return socket.inet_ntoa(reply[20:24])
    there = ", ".join(name for _, name in socket.if_nameindex())
    raise ValueError(
        f"none of the interfaces {', '.join(names)} has an IPv4 address; there are {there}"
    )
