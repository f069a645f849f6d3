"""A program between hosts 0 and 1 that takes all their connections, and sees frame by frame.

On each side it has the address that the other host has, as somebody on the wire may. It accepts
what a host dials, and dials on by itself, so both hosts' kernels find everything in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from netlab import NETLAB

DATA, CONTROL, MARK = 1, 2, 4  # FrameHeader::Kind

_LAB = os.environ.get("NETLAB", "perseus")
_BRIDGE, _BEYOND = f"{_LAB}-br", f"{_LAB}-br1"
_HOSTS = [f"{_LAB}0", f"{_LAB}1"]
_SIDES = [f"{_LAB}m0", f"{_LAB}m1"]  # the program's namespace on each host's side
_ADDRESSES = ["10.86.0.1", "10.86.0.2"]
_PORTS = range(42000, 42128)
_HEADER, _TAG = 40, 16
#: csrc/transport/handshake.h: what the caller and the called say before their first frame.
_HANDSHAKE = [80 + 32 + 16, 24 + 20]
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(eq=False)
class Connection:
    """Between two ranks, or a rank and the launcher."""

    caller: int  # the host that has dialled
    ends: list[socket.socket]  # the caller's, and that of the called
    is_link: bool = False
    frames: list[int] = field(default_factory=lambda: [0, 0])  # of data, by who has sent them

    def inject(self, to: int, data: bytes) -> None:
        self.ends[to].sendall(data)


@dataclass
class Frame:
    """One frame on its way; `data` is all of it."""

    connection: Connection
    to: int  # 0: the caller, 1: the called
    kind: int
    data: bytes

    @property
    def number(self) -> int:
        """How many data frames have gone this way over this connection, with this one."""
        return self.connection.frames[self.to]


#: Returns what goes on in the place of a frame. Frames of one connection in one direction come one
#: after the other; others at the same time.
Change = Callable[[Frame], bytes]


@contextlib.contextmanager
def proxied(wire: str, change: Change) -> Iterator[None]:
    """Puts the program between the hosts; `wire` is the ranks' PERSEUS_WIRE."""
    with contextlib.ExitStack() as stack:
        _set_up(stack)
        proxy = stack.enter_context(contextlib.closing(_Proxy(wire, change)))
        for side in (0, 1):
            # What host 0 dials is host 1's address, and the other way around.
            address = _ADDRESSES[1 - side]
            listening = [_within(_SIDES[side], _listener(address, port)) for port in _PORTS]
            for each in listening:
                stack.enter_context(each)
            proxy.start(side, listening)
        yield


def _listener(address: str, port: int) -> Callable[[], socket.socket]:
    return lambda: socket.create_server((address, port), backlog=64)


def _set_up(stack: contextlib.ExitStack) -> None:
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    def at(host: str, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", host, *command], check=True)

    ip("link", "add", _BEYOND, "type", "bridge")
    stack.callback(ip, "link", "delete", _BEYOND)
    ip("link", "set", _BEYOND, "up")
    ip("link", "set", f"{_LAB}-v1", "nomaster")
    stack.callback(ip, "link", "set", f"{_LAB}-v1", "master", _BRIDGE)
    ip("link", "set", f"{_LAB}-v1", "master", _BEYOND)
    for side, bridge in enumerate((_BRIDGE, _BEYOND)):
        ip("netns", "add", _SIDES[side])
        stack.callback(ip, "netns", "delete", _SIDES[side])
        link = f"{_LAB}-m{side}"
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", _SIDES[side])
        stack.callback(ip, "link", "delete", link)
        ip("link", "set", link, "master", bridge, "up")
        ip("-n", _SIDES[side], "address", "add", f"{_ADDRESSES[1 - side]}/24", "dev", "eth0")
        ip("-n", _SIDES[side], "link", "set", "eth0", "up")
        # The program listens at every port that the host on the other side may.
        port_range = "net.ipv4.ip_local_port_range"
        before = subprocess.run(
            [str(NETLAB), "at", str(side), "sysctl", "-n", port_range],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        stack.callback(at, _HOSTS[side], "sysctl", "-qw", f"{port_range}={before}")
        at(_HOSTS[side], "sysctl", "-qw", f"{port_range}={_PORTS[0]} {_PORTS[-1]}")
        stack.callback(ip, "-n", _HOSTS[side], "neigh", "flush", "all")
        ip("-n", _HOSTS[side], "neigh", "flush", "all")


def _within(namespace: str, make: Callable[[], socket.socket]) -> socket.socket:
    """Makes a socket in a network namespace, in which a socket stays."""
    made: list[socket.socket | OSError] = []

    def enter_and_make() -> None:
        with open(f"/var/run/netns/{namespace}") as file:
            assert _libc.setns(file.fileno(), _CLONE_NEWNET) == 0
        try:
            made.append(make())
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter_and_make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class _Proxy:
    def __init__(self, wire: str, change: Change):
        self._tags_all = wire != "plain"
        self._change = change
        self._end, self._stopping = os.pipe()
        self._threads: list[threading.Thread] = []

    def start(self, side: int, listening: list[socket.socket]) -> None:
        self._threads.append(threading.Thread(target=self._serve, args=(side, listening)))
        self._threads[-1].start()

    def close(self) -> None:
        os.close(self._stopping)
        for thread in self._threads:
            thread.join()
        os.close(self._end)

    def _serve(self, side: int, listening: list[socket.socket]) -> None:
        poll = select.poll()
        poll.register(self._end, 0)
        by_number = {each.fileno(): each for each in listening}
        for number in by_number:
            poll.register(number, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if number == self._end:
                    return
                accepted, _ = by_number[number].accept()
                self._pass_on(side, accepted)

    def _pass_on(self, side: int, accepted: socket.socket) -> None:
        called, source = accepted.getsockname()[:2], _ADDRESSES[side]
        try:
            dialled = _within(
                _SIDES[1 - side], lambda: socket.create_connection(called, 5, (source, 0))
            )
        except OSError:  # nobody listens there
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            return
        dialled.settimeout(None)
        connection = Connection(side, [accepted, dialled])
        for to in (0, 1):
            connection.ends[to].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(connection, to), daemon=True).start()

    def _pump(self, connection: Connection, to: int) -> None:
        with contextlib.suppress(OSError):
            self._move(connection, to)
        with contextlib.suppress(OSError):
            connection.ends[to].shutdown(socket.SHUT_WR)

    def _move(self, connection: Connection, to: int) -> None:
        source, target = connection.ends[1 - to], connection.ends[to]
        pending, handshake = b"", _HANDSHAKE[to == 0]
        while data := source.recv(1 << 16):
            if to == 0 and handshake == _HANDSHAKE[1]:
                connection.is_link = data.startswith(b"Perseus2")
            if not connection.is_link:
                target.sendall(data)
                continue
            said = min(handshake, len(data))
            target.sendall(data[:said])
            handshake -= said
            pending += data[said:]
            while len(frame := self._first_frame(pending)) > 0:
                pending = pending[len(frame) :]
                kind = frame[0]
                connection.frames[to] += kind == DATA
                target.sendall(self._change(Frame(connection, to, kind, frame)))

    def _first_frame(self, pending: bytes) -> bytes:
        """Returns the first frame if all of it is there."""
        if len(pending) < _HEADER:
            return b""
        has_tag = self._tags_all or pending[0] != DATA
        (length,) = struct.unpack_from("<I", pending, 4)
        size = _HEADER + length + (_TAG if has_tag else 0)
        return pending[:size] if len(pending) >= size else b""
