"""Accepts connections from agents that mpirun has started, and has them prove what they are."""

from __future__ import annotations

import contextlib
import errno
import hmac
import random
import resource
import secrets
import select
import selectors
import socket
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from perseus.run import call_back
from perseus.run.free_port import listen_anywhere
from perseus.run.message_tags import Session

PROOF_SECONDS = 5.0
PAUSE_WITHOUT_DESCRIPTORS_SECONDS = 0.1
MOST_CALLERS = 256
ACCEPTED_AT_ONCE = 16  # before those that have been accepted are heard
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True)
class CalledAgent:
    """An agent that has proved itself: its connection, and the address and name of its host."""

    connection: socket.socket
    session: Session
    address: str
    host: str


# Called with the rank of an agent that has proved itself.
Entered = Callable[[int, CalledAgent], None]


@dataclass(eq=False)
class _Caller:
    """A connection whose other end has not yet proved that it is an agent of the job."""

    connection: socket.socket
    address: str
    came: float = field(default_factory=time.monotonic)
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(call_back.CHALLENGE_BYTES))
    answer: bytes = b""


class Acceptor:
    """Accepts the agents of the awaited ranks.

    Any other caller is dropped after five seconds, and the number of callers at one time is
    bounded: beyond it, a new one takes the place of one chosen at random. So a flood of strangers
    cannot aim at the agents, which call again if they are dropped; csrc/base/caller_pool.h has the
    odds. Never blocks: the owner calls the data of the keys that its selector reports, and
    `handle_deadlines`. Not thread-safe.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listen_on: str,
        key: str,
        awaited: Container[int],
        entered: Entered,
    ):
        """Listens for agents.

        Args:
          listen_on: an address; "" for all.
          key: the job's, in hexadecimal digits.
          awaited: the ranks whose agents may come.
          entered: takes over the connection of each agent.
        """
        self._selector = selector
        self._key = key
        self._awaited = awaited
        self._entered = entered
        self._callers: list[_Caller] = []  # oldest first
        # Callers must not use up the descriptors that the launcher needs.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_callers = max(1, min(MOST_CALLERS, limit // 8))
        self._listener = listen_anywhere(listen_on)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._listen_at = float("inf")  # when to listen again, if it does not listen now
        self._listen()

    def close(self) -> None:
        """Stops listening, and drops all callers that have not proved themselves."""
        for caller in list(self._callers):
            self._forget(caller)
        with contextlib.suppress(KeyError, ValueError):  # not registered, or closed already
            self._selector.unregister(self._listener)
        self._listener.close()
        self._listen_at = float("inf")

    def next_deadline(self) -> float:
        """Returns when `handle_deadlines` must be called again, in seconds of time.monotonic."""
        oldest = self._callers[0].came if self._callers else float("inf")
        return min(oldest + PROOF_SECONDS, self._listen_at)

    def handle_deadlines(self, now: float) -> None:
        while self._callers and now >= self._callers[0].came + PROOF_SECONDS:
            self._forget(self._callers[0])
        if now >= self._listen_at:
            self._listen_at = float("inf")
            self._listen()

    def _listen(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _rest_until(self, moment: float) -> None:
        """Stops listening for a while: the listener stays readable, so a loop would spin."""
        self._selector.unregister(self._listener)
        self._listen_at = moment

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the caller has gone, or descriptors or memory have run out
                if not _has_caller(self._listener):
                    return
                if error.errno in _EXHAUSTED and not self._drop_one():
                    self._rest_until(time.monotonic() + PAUSE_WITHOUT_DESCRIPTORS_SECONDS)
                    return
                continue
            self._greet(connection, str(address[0]))

    def _greet(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        caller = _Caller(connection, address)
        try:
            if _has_hung_up(connection):
                connection.close()
                return
            call_back.keep_alive(connection)
            connection.send(caller.challenge)
        except OSError:
            connection.close()
            return
        if len(self._callers) >= self._most_callers:
            self._drop_one()
        self._callers.append(caller)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read_answer(caller))

    def _drop_one(self) -> bool:
        """Drops a caller chosen at random; returns False if there is none."""
        if not self._callers:
            return False
        self._forget(random.choice(self._callers))
        return True

    def _forget(self, caller: _Caller) -> None:
        self._let_go(caller)
        caller.connection.close()

    def _let_go(self, caller: _Caller) -> None:
        self._callers.remove(caller)
        self._selector.unregister(caller.connection)

    def _read_answer(self, caller: _Caller) -> None:
        """Reads a caller's answer and nothing after it, which belongs to the agent's protocol."""
        if caller not in self._callers:
            return  # dropped since the selector reported it
        length = call_back.HELLO.size + call_back.PROOF_BYTES
        try:
            data = caller.connection.recv(length - len(caller.answer))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.answer += data
        if not data:
            self._forget(caller)
        elif len(caller.answer) == length:
            self._verify(caller)

    def _verify(self, caller: _Caller) -> None:
        hello, proof = caller.answer[: call_back.HELLO.size], caller.answer[call_back.HELLO.size :]
        rank, _, called, name = call_back.HELLO.unpack(hello)
        expected = call_back.proof(self._key, caller.challenge, hello)
        if not hmac.compare_digest(proof, expected) or rank not in self._awaited:
            return self._forget(caller)
        session = call_back.session(
            self._key, caller.challenge, caller.answer, call_back.AS_LAUNCHER
        )
        try:
            # Somebody passes a connection on that has come to another address than was called.
            is_direct = called == call_back.pack_address(caller.connection.getsockname()[:2])
            verdict = call_back.WELCOME if is_direct else call_back.NOT_CALLED_HERE
            caller.connection.send(session.sealer.seal(verdict))
        except OSError:
            return self._forget(caller)  # it has gone already
        if not is_direct:
            return self._forget(caller)
        self._let_go(caller)
        host = name.rstrip(b"\0").decode(errors="replace")
        self._entered(rank, CalledAgent(caller.connection, session, caller.address, host))


def _has_caller(listener: socket.socket) -> bool:
    """Returns whether a caller waits to be accepted.

    The kernel takes a descriptor before it looks, so accept reports exhaustion even if nobody
    calls, and then nobody has to give way.
    """
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


def _has_hung_up(connection: socket.socket) -> bool:
    """Returns whether the other end has closed the connection already, as port scanners do."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
