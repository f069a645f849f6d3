"""Runs mpirun, with a program in between its agents and the launcher that changes what they say.

The agents get a network of their own, in which the launcher's address is this program's. So they
call the right address, as they do when somebody answers in the place of another host.

    mpirun_with_eavesdropper.py MPIRUN FROM RANK CHANGE AT ARGUMENTS...

changes one record of what is said to or by the agent of one rank. FROM is "launcher" or "agent".
CHANGE is a function below; AT counts the records from there. With "elsewhere" as FROM, agents are
told another address, where this program changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from perseus.run.call_back import CALL_BACK, CHALLENGE_BYTES, HELLO, PROOF_BYTES
from perseus.run.message_tags import TAG_BYTES

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
Records = Iterator[bytes]


def write_mpirun(
    folder: Path, real: str | Path, said_by: str, rank: int = 0, change: str = "none", at: int = 3
) -> None:
    """Writes an mpirun that does so."""
    script = folder / "mpirun"
    command = [sys.executable, __file__, str(real), said_by, str(rank), change, str(at)]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)


def can_eavesdrop() -> bool:
    """Returns whether networks can be made here."""
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-n", "true"]).returncode == 0


def flip(record: bytes, _: Records) -> bytes:
    """Changes a bit of the bytes."""
    return record[:24] + bytes([record[24] ^ 1]) + record[25:]


def shorten(record: bytes, _: Records) -> bytes:
    """Changes a bit of the length."""
    return record[:3] + bytes([record[3] ^ 1]) + record[4:]


def lengthen(record: bytes, _: Records) -> bytes:
    """Announces 2 GiB more."""
    return bytes([record[0] ^ 128]) + record[1:]


def drop(_: bytes, __: Records) -> bytes:
    return b""


def repeat(record: bytes, _: Records) -> bytes:
    return record + record


def swap(record: bytes, later: Records) -> bytes:
    return next(later) + record


def inject(record: bytes, _: Records) -> bytes:
    """Adds a command to end the job, or an exit of rank 1."""
    body = b"T" if len(record) < 64 else struct.pack("!BII", 3, 1, 1) + b"0"
    return struct.pack("!I", len(body)) + bytes(TAG_BYTES) + body + bytes(TAG_BYTES) + record


def cut(_: bytes, __: Records) -> bytes:
    raise EOFError


def take(source: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = source.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def records(source: socket.socket) -> Records:
    while True:
        head = take(source, 4 + TAG_BYTES)
        yield head + take(source, struct.unpack_from("!I", head)[0] + TAG_BYTES)


def pass_on(
    records: Records, to: socket.socket, change: Callable[[bytes, Records], bytes] | None, at: int
) -> None:
    with contextlib.suppress(EOFError, OSError):
        for index, record in enumerate(records):
            to.sendall(change(record, records) if change and index == at else record)


def attend(agent: socket.socket, address: tuple[str, int]) -> None:
    """Passes on what an agent and the launcher say, until either hangs up."""
    launcher = socket.create_connection(address)
    agent.sendall(take(launcher, CHALLENGE_BYTES))
    answer = take(agent, HELLO.size + PROOF_BYTES)
    launcher.sendall(answer)
    is_chosen = HELLO.unpack_from(answer)[0] == int(RANK)
    change = globals().get(CHANGE) if is_chosen else None
    ways = (("launcher", launcher, agent), ("agent", agent, launcher))
    for name, source, to in ways:
        threading.Thread(
            target=hang_up_after,
            args=(records(source), to, change if name == FROM else None, (agent, launcher)),
        ).start()


def hang_up_after(
    records: Records,
    to: socket.socket,
    change: Callable[[bytes, Records], bytes] | None,
    both: tuple[socket.socket, socket.socket],
) -> None:
    pass_on(records, to, change, int(AT))
    for end in both:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def listen_in_a_network_of_our_own(address: tuple[str, int]) -> socket.socket:
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    return socket.create_server(address)


if __name__ == "__main__":
    mpirun, FROM, RANK, CHANGE, AT, *arguments = sys.argv[1:]
    if arguments == ["--version"]:
        os.execv(mpirun, [mpirun, *arguments])
    libc = ctypes.CDLL(None, use_errno=True)
    host, port, key = os.environ[CALL_BACK].split()
    launchers = (host, int(port))
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    if FROM == "elsewhere":
        listener = socket.create_server((host, 0))
        os.environ[CALL_BACK] = f"{host} {listener.getsockname()[1]} {key}"
    else:
        listener = listen_in_a_network_of_our_own(launchers)
    if os.fork():
        os.execv(mpirun, [mpirun, *arguments])
    if libc.setns(outside, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # mpirun's output ends with mpirun
    os.dup2(1, 2)
    listener.settimeout(0.2)  # seconds
    parent = os.getppid()
    while os.getppid() == parent:  # mpirun runs
        with contextlib.suppress(TimeoutError):
            attend(listener.accept()[0], launchers)
