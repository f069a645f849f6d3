"""A man in the middle: a program on a host's wire, which sees each packet and may change it."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from netlab import NETLAB

#: Given what a TCP packet carries, returns as many bytes, which go on in its place.
Change = Callable[[bytes], bytes]

_LAB = os.environ.get("NETLAB", "perseus")
_TAP, _NEAR = f"{_LAB}-tap", f"{_LAB}-near"
_EVERY_PROTOCOL = 3  # ETH_P_ALL
_ETHERNET, _IPV4, _TCP = 14, 0x0800, 6

# SIOCETHTOOL with ETHTOOL_STXCSUM, ETHTOOL_STSO and ETHTOOL_SGSO.
_SETS_OFFLOADS = """
import array, fcntl, socket, struct, sys
with socket.socket() as any_socket:
    for command in (0x17, 0x1f, 0x24):
        value = array.array("B", struct.pack("II", command, int(sys.argv[1])))
        request = struct.pack("16sP16x", b"eth0", value.buffer_info()[0])
        fcntl.ioctl(any_socket, 0x8946, request)
"""


@contextlib.contextmanager
def whole_packets(hosts: int) -> Iterator[None]:
    """The lab's hosts compute checksums and cut their data into packets themselves.

    Otherwise they leave both to a network card, which does not exist here.
    """
    _set_offloads(hosts, False)
    try:
        yield
    finally:
        _set_offloads(hosts, True)


def _set_offloads(hosts: int, on: bool) -> None:
    for host in range(hosts):
        at = [str(NETLAB), "at", str(host), sys.executable, "-c", _SETS_OFFLOADS]
        subprocess.run([*at, str(int(on))], check=True)


@contextlib.contextmanager
def on_the_wire_of(host: int, change: Change) -> Iterator[None]:
    """Puts `change` between a host of the lab and all the others, within `whole_packets`."""
    wire = f"{_LAB}-v{host}"
    _ip("link", "add", _TAP, "type", "veth", "peer", "name", _NEAR)
    try:
        _ip("link", "set", _TAP, "master", f"{_LAB}-br", "up")
        _ip("link", "set", _NEAR, "up")
        _ip("link", "set", wire, "nomaster")
        with _listening(wire) as to_host, _listening(_NEAR) as to_others:
            end, stop = os.pipe()
            relay = threading.Thread(target=_relay, args=(to_host, to_others, end, change))
            relay.start()
            try:
                yield
            finally:
                os.close(stop)
                relay.join()
                os.close(end)
    finally:
        _ip("link", "set", wire, "master", f"{_LAB}-br")
        _ip("link", "delete", _TAP)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _listening(interface: str) -> socket.socket:
    # Without a protocol it hears nothing; with one, it would hear all interfaces until it is bound.
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    tap.bind((interface, _EVERY_PROTOCOL))
    index = socket.if_nametoindex(interface)
    promiscuous = struct.pack("iHH8s", index, 1, 0, b"")
    tap.setsockopt(263, 1, promiscuous)  # SOL_PACKET, PACKET_ADD_MEMBERSHIP
    tap.setblocking(False)
    return tap


def _relay(one: socket.socket, other: socket.socket, end: int, change: Change) -> None:
    selector = selectors.DefaultSelector()
    selector.register(one, selectors.EVENT_READ, other)
    selector.register(other, selectors.EVENT_READ, one)
    selector.register(end, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                return
            assert isinstance(key.fileobj, socket.socket)
            with contextlib.suppress(BlockingIOError):
                packet, sender = key.fileobj.recvfrom(1 << 17)
                if sender[2] != socket.PACKET_OUTGOING:
                    key.data.send(_changed(packet, change))


def _changed(packet: bytes, change: Change) -> bytes:
    (protocol,) = struct.unpack_from("!H", packet, 12)
    if protocol != _IPV4 or packet[_ETHERNET + 9] != _TCP:
        return packet
    tcp = _ETHERNET + (packet[_ETHERNET] & 15) * 4
    (length,) = struct.unpack_from("!H", packet, _ETHERNET + 2)
    data, end = tcp + (packet[tcp + 12] >> 4) * 4, _ETHERNET + length
    before = packet[data:end]
    after = change(before) if before else before
    if after == before:
        return packet
    assert len(after) == len(before)
    whole = bytearray(packet[:data] + after + packet[end:])
    whole[tcp + 16 : tcp + 18] = b"\0\0"
    addresses = whole[_ETHERNET + 12 : _ETHERNET + 20]
    pseudo_header = addresses + struct.pack("!HH", _TCP, end - tcp)
    struct.pack_into("!H", whole, tcp + 16, _checksum(pseudo_header + whole[tcp:end]))
    return bytes(whole)


def _checksum(data: bytearray) -> int:
    """RFC 1071."""
    if len(data) % 2:
        data = data + b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
