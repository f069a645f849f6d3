"""This host's interfaces and addresses, and ports that are free."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from perseus.run.free_port import listen_anywhere

__all__ = [
    "filter_local_addresses",
    "find_port",
    "get_driver_ip",
    "get_local_host_addresses",
    "get_local_intfs",
    "interface_addresses",
    "resolve_host_address",
]

Server = TypeVar("Server")
_SIOCGIFADDR = 0x8915


def interface_addresses() -> dict[str, str]:
    """Returns the IPv4 address of each of this host's interfaces that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                reply = fcntl.ioctl(
                    probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15])
                )
                found[name] = socket.inet_ntoa(reply[20:24])
    return found


@functools.cache
def get_local_host_addresses() -> set[str]:
    return set(interface_addresses().values())


def get_local_intfs(nic: str | None = None) -> set[str]:
    """Returns the interfaces with the address 127.0.0.1, or of them the one that is named."""
    return {
        name
        for name, address in interface_addresses().items()
        if address == "127.0.0.1" and nic in (None, "", name)
    }


def resolve_host_address(host_name: str) -> str | None:
    """Returns a host's IPv4 address; None if the name cannot be resolved."""
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def filter_local_addresses(all_host_names: Sequence[str]) -> list[str]:
    """Returns the hosts that are not this one, and those that cannot be resolved."""
    if not all_host_names:
        return []
    here = get_local_host_addresses()
    with ThreadPoolExecutor(min(64, len(all_host_names))) as pool:
        addresses = pool.map(resolve_host_address, all_host_names)
        return [
            name
            for name, address in zip(all_host_names, addresses, strict=True)
            if address not in here
        ]


def find_port(server_factory: Callable[[tuple[str, int]], Server]) -> tuple[Server, int]:
    """Returns a server that `server_factory((address, port))` has made, and its free port."""
    for _ in range(100):
        with listen_anywhere("") as probe:
            port: int = probe.getsockname()[1]
        with contextlib.suppress(OSError):  # another process has taken it meanwhile
            return server_factory(("", port)), port
    raise RuntimeError("no port was free in 100 attempts")


def get_driver_ip(nics: Iterable[str]) -> str:
    """Returns the IPv4 address of the first of these interfaces. RuntimeError if it has none."""
    name = next(iter(nics))
    address = interface_addresses().get(name)
    if address is None:
        raise RuntimeError(f"interface {name} has no IPv4 address")
    return address
