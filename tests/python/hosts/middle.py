"""A program on the wire between host 1 and the others, which reads and changes what passes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

NETLAB = Path(__file__).parents[3] / "scripts/netlab.sh"
WIRE = "perseus-v1"  # of host 1, as scripts/netlab.sh names it
BRIDGE = "perseus-br"
OURS, THEIRS = "middle-a", "middle-b"
ETHERNET, IPV4, TCP = 14, 0x0800, 6
SIOCETHTOOL = 0x8946
#: Commands of ethtool that switch off what would leave checksums and packets' sizes to the card:
#: checksums, segmentation and its reverse.
OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)


class Middle:
    """Passes all packets on, both ways. Thread-safe where it says so."""

    def __init__(self, wires: tuple[socket.socket, socket.socket]):
        self._wires = wires
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._find = self._replace = b""
        #: How many packets had the bytes that spy() looks for.
        self.seen = 0
        #: How many were changed.
        self.changed = 0

    def spy(self, find: bytes) -> None:
        """Counts the packets that contain `find`. Any thread."""
        self.seen, self._replace, self._find = 0, b"", find

    def change(self, find: bytes, replace: bytes) -> None:
        """Replaces what is found, in the same number of bytes. Any thread."""
        assert len(find) == len(replace)
        self.seen, self._replace, self._find = 0, replace, find

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.close()
        self._thread.join()
        self._end.close()

    def _run(self) -> None:
        one, other = self._wires
        while True:
            ready, _, _ = select.select([one, other, self._end], [], [])
            if self._end in ready:
                return
            for wire in ready:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        packet, address = wire.recvfrom(65536)
                        if address[2] != socket.PACKET_OUTGOING:  # type: ignore[attr-defined]
                            self._pass_on(packet, other if wire is one else one)

    def _pass_on(self, packet: bytes, wire: socket.socket) -> None:
        find, replace = self._find, self._replace
        if find and find in packet:
            self.seen += 1
            if replace:
                self.changed += 1
                packet = with_checksum(packet.replace(find, replace))
        # A full queue loses the packet, as on any wire.
        with contextlib.suppress(OSError):
            wire.send(packet)


def with_checksum(packet: bytes) -> bytes:
    """Returns a packet of TCP over IPv4 with its checksum (RFC 9293, section 3.1); others as is."""
    header = ETHERNET + 4 * (packet[ETHERNET] & 15)
    if struct.unpack_from("!H", packet, 12) != (IPV4,) or packet[ETHERNET + 9] != TCP:
        return packet
    (length,) = struct.unpack_from("!H", packet, ETHERNET + 2)
    segment = bytearray(packet[header : ETHERNET + length])
    segment[16:18] = b"\0\0"
    pseudo_header = packet[ETHERNET + 12 : ETHERNET + 20] + struct.pack("!HH", TCP, len(segment))
    summed = pseudo_header + segment + b"\0" * (len(segment) % 2)
    total = sum(struct.unpack(f"!{len(summed) // 2}H", summed))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    segment[16:18] = struct.pack("!H", ~total & 0xFFFF)
    return packet[:header] + bytes(segment) + packet[ETHERNET + length :]


@contextlib.contextmanager
def in_the_middle() -> Iterator[Middle]:
    """Cuts the wire of host 1 and sits there. Needs the lab to be up."""
    ip("link", "add", OURS, "type", "veth", "peer", "name", THEIRS)
    try:
        ip("link", "set", THEIRS, "master", BRIDGE, "up")
        ip("link", "set", OURS, "up")
        ip("link", "set", WIRE, "nomaster")
        for host in ("0", "1"):
            at_host = [str(NETLAB), "at", host, "python3", __file__, "eth0"]
            subprocess.run(at_host, check=True)
        with open_wire(WIRE) as one, open_wire(OURS) as other:
            middle = Middle((one, other))
            middle.start()
            try:
                yield middle
            finally:
                middle.stop()
    finally:
        ip("link", "set", WIRE, "master", BRIDGE)
        ip("link", "delete", OURS)


def open_wire(name: str) -> socket.socket:
    every_protocol = socket.htons(3)
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, every_protocol)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    wire.bind((name, 0))
    wire.setblocking(False)
    promiscuous = struct.pack("IHH8s", socket.if_nametoindex(name), 1, 0, b"")
    wire.setsockopt(263, 1, promiscuous)  # SOL_PACKET, PACKET_ADD_MEMBERSHIP
    return wire


def switch_off_offloads(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(control, SIOCETHTOOL, request)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


if __name__ == "__main__":  # on a host
    switch_off_offloads(sys.argv[1])
