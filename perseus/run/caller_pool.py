"""The connections of callers that have not proven yet that they know a secret."""

from __future__ import annotations

import contextlib
import errno
import random
import resource
import secrets
import select
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from perseus.run import call_back

PROOF_SECONDS = 5.0
PAUSE_WITHOUT_DESCRIPTORS_SECONDS = 0.1
MOST_CALLERS = 256
ACCEPTED_AT_ONCE = 16  # before those that have been accepted are heard
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(eq=False)
class Caller:
    """A connection whose other end has not yet proven that it knows the secret."""

    connection: socket.socket
    address: str
    came: float = field(default_factory=time.monotonic)
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(call_back.CHALLENGE_BYTES))
    answer: bytes = b""


class CallerPool:
    """Accepts callers, sends each a challenge, and reads an answer of so many bytes.

    A caller is dropped after five seconds, and the number of callers at one time is bounded: beyond
    it, a new one takes the place of one chosen at random. So a flood of strangers cannot aim at
    those who know the secret, who call again if they are dropped; csrc/base/caller_pool.h has the
    odds. Never blocks: the owner calls the data of the keys that its selector reports, and
    `handle_deadlines`. Not thread-safe.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        answer_bytes: int,
        answered: Callable[[Caller], None],
    ):
        """Accepts callers from now on.

        Args:
          answered: takes over the connection of each caller whose answer is whole, but may be
            wrong. Raises nothing.
        """
        self._selector = selector
        self._answer_bytes = answer_bytes
        self._answered = answered
        self._callers: list[Caller] = []  # oldest first
        # Callers must not use up the descriptors that the process needs.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_callers = max(1, min(MOST_CALLERS, limit // 8))
        self._listener = listener
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._listen_at = float("inf")  # when to listen again, if it does not listen now
        self._listen()

    def close(self) -> None:
        """Stops listening, and drops all callers that have not proven themselves."""
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
        caller = Caller(connection, address)
        try:
            if _has_hung_up(connection):
                connection.close()
                return
            connection.send(caller.challenge)
            self._selector.register(
                connection, selectors.EVENT_READ, lambda: self._read_answer(caller)
            )
        except OSError:
            connection.close()
            return
        if len(self._callers) >= self._most_callers:
            self._drop_one()
        self._callers.append(caller)

    def _drop_one(self) -> bool:
        """Drops a caller chosen at random; returns False if there is none."""
        if not self._callers:
            return False
        self._forget(random.choice(self._callers))
        return True

    def _forget(self, caller: Caller) -> None:
        self._let_go(caller)
        caller.connection.close()

    def _let_go(self, caller: Caller) -> None:
        self._callers.remove(caller)
        self._selector.unregister(caller.connection)

    def _read_answer(self, caller: Caller) -> None:
        """Reads a caller's answer and nothing after it, which belongs to the owner's protocol."""
        if caller not in self._callers:
            return  # dropped since the selector reported it
        try:
            data = caller.connection.recv(self._answer_bytes - len(caller.answer))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.answer += data
        if not data:
            self._forget(caller)
        elif len(caller.answer) == self._answer_bytes:
            self._let_go(caller)
            self._answered(caller)


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
