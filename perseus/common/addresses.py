"""The addresses at which other hosts may reach this one."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

__all__ = ["own_addresses"]

_SIOCGIFADDR = 0x8915
# Reserved for documentation: a route to it is the one that leads away from here.
_ELSEWHERE = "192.0.2.1"


def own_addresses(interfaces: str = "") -> list[str]:
    """Returns this host's IPv4 addresses, the one that packets to far hosts leave from first.

    `interfaces`: names, separated by commas; only theirs are returned. Without an address, returns
    the host's name.
    """
    wanted = {name.strip() for name in interfaces.split(",") if name.strip()}
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            if wanted and name not in wanted:
                continue
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(reply[20:24]))
        found = [address for address in found if wanted or not address.startswith("127.")]
        with contextlib.suppress(OSError):
            probe.connect((_ELSEWHERE, 9))  # sends nothing; it asks the routing table
            first = probe.getsockname()[0]
            found.sort(key=lambda address: address != first)
    return found or [socket.gethostname()]
