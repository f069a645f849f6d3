"""How an agent that mpirun has started calls its launcher, and both prove what they are.

The launcher's address and key are in PERSEUSRUN_CALL_BACK. The key is never sent here:

    launcher  Greeting  a random challenge
    agent     Hello     its rank, a challenge of its own, the address that it has called and its
                        host's name; and its proof, which is the HMAC over its role, the launcher's
                        challenge and the hello
    launcher  Welcome   WELCOME, or NOT_CALLED_HERE, in the first record of the session

The keys of the session come from the key and from all of that (message_tags.py), so the welcome
proves that the launcher knows the key. A program in between that passes all on is noticed by the
address, and can change nothing.

An agent imports this; it needs only the standard library.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from perseus.run.agent_protocol import NotAuthenticError
else:  # in an agent, which is run by its path
    from agent_protocol import NotAuthenticError
if TYPE_CHECKING:
    from perseus.run.message_tags import Session

CALL_BACK = "PERSEUSRUN_CALL_BACK"  # "host port key"
CALL_BACK_SECONDS = 30.0  # the launcher must prove itself within these
# In a flood of strangers the launcher drops callers at random, and the kernel requests to connect,
# which it sends again after 1, 2, 4 ... seconds.
PAUSE_BETWEEN_CALLS_SECONDS = 0.02
CONNECT_SECONDS = 5.0
CHALLENGE_BYTES = 16
ADDRESS_BYTES = 18
# rank, challenge, address, name of the host
HELLO = struct.Struct(f"!I{CHALLENGE_BYTES}s{ADDRESS_BYTES}s64s")
PROOF_BYTES = 32
AS_AGENT, AS_LAUNCHER = b"perseusrun agent", b"perseusrun launcher"
WELCOME, NOT_CALLED_HERE = b"W", b"N"
# The variables by which MPI's launchers tell a rank: Open MPI, MVAPICH, MPICH and its family, PMIx.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


class _NotCalledHereError(OSError):
    pass


def proof(key: str, challenge: bytes, hello: bytes) -> bytes:
    """Returns the proof that only an agent of the job can make, for this challenge and hello."""
    import hmac

    return hmac.digest(bytes.fromhex(key), AS_AGENT + challenge + hello, "sha256")


def session(key: str, challenge: bytes, answer: bytes, mine: bytes) -> Session:
    """Returns an end of the connection on which this was said. `answer`: the hello and its proof.

    `mine` is AS_AGENT or AS_LAUNCHER.
    """
    if TYPE_CHECKING or __package__:
        from perseus.run.message_tags import Session
    else:
        from message_tags import Session

    other = AS_LAUNCHER if mine == AS_AGENT else AS_AGENT
    return Session(bytes.fromhex(key), challenge + answer, mine, other)


def pack_address(where: tuple[str, int]) -> bytes:
    """Packs what getsockname or getpeername returns."""
    host = where[0].partition("%")[0]  # the scope is a number of this host alone
    whole = host if ":" in host else f"::ffff:{host}"
    return socket.inet_pton(socket.AF_INET6, whole) + struct.pack("!H", where[1])


def keep_alive(connection: socket.socket) -> None:
    """Makes a connection fail within 40 s if the other host has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def call_back() -> tuple[Session, int]:
    """Connects to the launcher and makes the connection our stdin and stdout.

    The launcher must prove itself first. Returns the session and our rank.
    """
    host, port, key = os.environ.pop(CALL_BACK).split()
    rank = next(int(os.environ[name]) for name in MPI_RANKS if name in os.environ)
    deadline = time.monotonic() + CALL_BACK_SECONDS
    launcher = f"perseusrun at {host} port {port}"
    mine = f"rank {rank} on host {socket.gethostname()}"
    try:
        while (agreed := _enter((host, int(port)), key, rank, deadline)) is None:
            time.sleep(PAUSE_BETWEEN_CALLS_SECONDS)
    except _NotCalledHereError:
        sys.exit(
            f"{mine} is not started: it called {launcher}, but its call came to another address: a "
            "program there passes it on, a port is forwarded, or addresses are translated; use "
            "addresses at which hosts reach each other directly"
        )
    except OSError as error:
        reason = error.strerror or error
        sys.exit(f"{mine} is not started: {launcher} cannot be reached: {reason}")
    return agreed, rank


def _enter(address: tuple[str, int], key: str, rank: int, deadline: float) -> Session | None:
    """Returns None if the launcher dropped the connection, as it does when many callers wait."""
    if TYPE_CHECKING or __package__:
        from perseus.run.free_port import connect
    else:
        from free_port import connect

    try:
        connecting = connect(address, min(CONNECT_SECONDS, seconds_until(deadline)))
    except TimeoutError:
        seconds_until(deadline)  # raises it once more if that was all
        return None
    try:
        with connecting as connection:
            agreed = _shake_hands(connection, key, rank, deadline)
            connection.settimeout(None)
            keep_alive(connection)
            for standard in (sys.stdin, sys.stdout):
                os.dup2(connection.fileno(), standard.fileno())
            return agreed
    except (BrokenPipeError, ConnectionResetError):
        return None


def _shake_hands(connection: socket.socket, key: str, rank: int, deadline: float) -> Session:
    """Proves that we know the key. Raises OSError if the other side does not, or sends us away."""
    if TYPE_CHECKING or __package__:
        from perseus.run.message_tags import record_bytes
    else:
        from message_tags import record_bytes

    challenge = take(connection, CHALLENGE_BYTES, deadline)
    called = pack_address(connection.getpeername()[:2])
    name = socket.gethostname().encode()
    hello = HELLO.pack(rank, os.urandom(CHALLENGE_BYTES), called, name)
    answer = hello + proof(key, challenge, hello)
    connection.sendall(answer)
    agreed = session(key, challenge, answer, AS_AGENT)
    try:
        verdict = b"".join(
            agreed.opener.open(take(connection, record_bytes(len(WELCOME)), deadline))
        )
    except NotAuthenticError:
        reason = "the process that answers there does not know the job's key"
        raise PermissionError(reason) from None
    if verdict != WELCOME:
        raise _NotCalledHereError
    return agreed


def take(connection: socket.socket, length: int, deadline: float) -> bytes:
    """Reads so many bytes; ConnectionResetError if the connection ends before."""
    data = b""
    while len(data) < length:
        connection.settimeout(seconds_until(deadline))
        piece = connection.recv(length - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


def seconds_until(deadline: float) -> float:
    """Returns how long it is until then, by time.monotonic. TimeoutError if it is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
