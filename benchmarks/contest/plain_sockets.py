"""Measures plain TCP sockets: the limit of a link, for one connection and for several.

python plain_sockets.py OWN_ADDRESS NEXT_ADDRESS --connections 4 --seconds 2 --senders accepting

One process runs on each host of a ring. It opens this many connections to the next host and accepts
as many from the previous one. Then either the connecting or the accepting ends send as fast as they
can. Prints the Mbit/s of payload that this host received in each of several time windows, on one
line. Nothing is computed.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
import time

PORT = 29_999
PIECE = 1 << 18
#: Seconds until connections have reached their speed.
WARM_UP = 0.5
#: Seconds.
WINDOW = 0.25


def listen(address: str, connections: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, PORT))
    listener.listen(connections)
    return listener


def connect(address: str, patience: float = 20) -> socket.socket:
    """Retries, since the next host's process may start later than this one."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection((address, PORT))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def send_until(end: float, connection: socket.socket) -> None:
    """Ignores that a receiver which has measured enough may have closed the connection."""
    piece = bytes(PIECE)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < end:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)


class Receiver:
    """Counts the bytes of all connections within each window of time."""

    def __init__(self, begin: float, windows: int) -> None:
        self.begin, self.windows = begin, windows
        self.end = begin + windows * WINDOW
        self.counts: list[list[int]] = []

    def receive(self, connection: socket.socket) -> None:
        counts = [0] * self.windows
        into = bytearray(PIECE)
        while received := connection.recv_into(into):
            now = time.monotonic()
            if self.begin <= now < self.end:
                counts[int((now - self.begin) / WINDOW)] += received
        self.counts.append(counts)

    def mbit(self) -> list[float]:
        return [sum(counts) * 8e-6 / WINDOW for counts in zip(*self.counts, strict=True)]


def exchange(
    own: str, following: str, connections: int, seconds: float, senders: str
) -> list[float]:
    listener = listen(own, connections)
    opened = [connect(following) for _ in range(connections)]
    accepted = [listener.accept()[0] for _ in range(connections)]
    sending, receiving = (accepted, opened) if senders == "accepting" else (opened, accepted)
    now = time.monotonic()
    receiver = Receiver(now + WARM_UP, max(1, round(seconds / WINDOW)))
    # Longer than all windows, because the other hosts' may start a little later.
    end = receiver.end + WARM_UP
    threads = [threading.Thread(target=send_until, args=(end, one)) for one in sending]
    threads += [threading.Thread(target=receiver.receive, args=(one,)) for one in receiving]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return receiver.mbit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("own")
    parser.add_argument("following")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--senders", choices=("connecting", "accepting"), default="connecting")
    args = parser.parse_args()
    print(*exchange(args.own, args.following, args.connections, args.seconds, args.senders))


if __name__ == "__main__":
    main()
