"""How an agent that mpirun has started calls its launcher.

The launcher's address and key are in PERSEUSRUN_CALL_BACK. First each side proves to the other that
it knows the key, which is never sent:

    launcher  Greeting  a random challenge
    agent     Hello     its rank, a challenge of its own and its host's name; and its proof, which
                        is the HMAC over its role, the launcher's challenge and the hello
    launcher  Welcome   its proof, over its own role, the same challenge and the hello

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

CALL_BACK = "PERSEUSRUN_CALL_BACK"  # "host port key"
CALL_BACK_SECONDS = 30.0  # the launcher must prove itself within these
PAUSE_BETWEEN_CALLS_SECONDS = 0.1
CHALLENGE_BYTES = 16
HELLO = struct.Struct(f"!I{CHALLENGE_BYTES}s64s")  # rank, challenge, name of the host
PROOF_BYTES = 32
AS_AGENT, AS_LAUNCHER = b"perseusrun agent", b"perseusrun launcher"
# The variables by which MPI's launchers tell a rank: Open MPI, MVAPICH, MPICH and its family, PMIx.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def proof(key: str, role: bytes, challenge: bytes, hello: bytes) -> bytes:
    """Returns the proof that only a process of the job can make, for this challenge and hello.

    `role` is AS_AGENT or AS_LAUNCHER.
    """
    import hashlib
    import hmac

    return hmac.new(bytes.fromhex(key), role + challenge + hello, hashlib.sha256).digest()


def keep_alive(connection: socket.socket) -> None:
    """Makes a connection fail within 40 s if the other host has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def call_back() -> None:
    """Connects to the launcher and makes the connection our stdin and stdout.

    The launcher must prove itself first.
    """
    host, port, key = os.environ.pop(CALL_BACK).split()
    rank = next(int(os.environ[name]) for name in MPI_RANKS if name in os.environ)
    deadline = time.monotonic() + CALL_BACK_SECONDS
    try:
        while not _is_let_in((host, int(port)), key, rank, deadline):
            time.sleep(PAUSE_BETWEEN_CALLS_SECONDS)
    except OSError as error:
        launcher = f"perseusrun at {host} port {port}"
        reason = error.strerror or error
        sys.exit(f"rank {rank} is not started: {launcher} cannot be reached: {reason}")


def _is_let_in(address: tuple[str, int], key: str, rank: int, deadline: float) -> bool:
    """Returns False if the launcher dropped the connection, as it does when many callers wait."""
    try:
        with socket.create_connection(address, _seconds_until(deadline)) as connection:
            if not _is_launcher(connection, key, rank, deadline):
                raise PermissionError("the process that answers there does not know the job's key")
            connection.settimeout(None)
            keep_alive(connection)
            for standard in (sys.stdin, sys.stdout):
                os.dup2(connection.fileno(), standard.fileno())
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _is_launcher(connection: socket.socket, key: str, rank: int, deadline: float) -> bool:
    """Proves that we know the key; returns whether the other side does."""
    import hmac

    challenge = _take(connection, CHALLENGE_BYTES, deadline)
    hello = HELLO.pack(rank, os.urandom(CHALLENGE_BYTES), socket.gethostname().encode())
    connection.sendall(hello + proof(key, AS_AGENT, challenge, hello))
    expected = proof(key, AS_LAUNCHER, challenge, hello)
    return hmac.compare_digest(_take(connection, PROOF_BYTES, deadline), expected)


def _take(connection: socket.socket, length: int, deadline: float) -> bytes:
    data = b""
    while len(data) < length:
        connection.settimeout(_seconds_until(deadline))
        piece = connection.recv(length - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


def _seconds_until(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
