"""Accepts connections from agents that mpirun has started, and has them prove what they are."""

from __future__ import annotations

import hmac
import selectors
import socket
from collections.abc import Callable, Container
from dataclasses import dataclass

from perseus.run import call_back
from perseus.run.caller_pool import Caller, CallerPool
from perseus.run.free_port import listen_anywhere
from perseus.run.message_tags import Session


@dataclass(frozen=True)
class CalledAgent:
    """An agent that has proved itself: its connection, and the address and name of its host."""

    connection: socket.socket
    session: Session
    address: str
    host: str


# Called with the rank of an agent that has proved itself.
Entered = Callable[[int, CalledAgent], None]


class Acceptor(CallerPool):
    """Accepts the agents of the awaited ranks."""

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
        answer_bytes = call_back.HELLO.size + call_back.PROOF_BYTES
        super().__init__(selector, listen_anywhere(listen_on), answer_bytes, self._prove)
        self._key = key
        self._awaited = awaited
        self._entered = entered

    def _prove(self, caller: Caller) -> None:
        try:
            called = self._verified(caller)
        except OSError:  # it has gone already
            called = None
        if called is None:
            caller.connection.close()
        else:
            self._entered(*called)

    def _verified(self, caller: Caller) -> tuple[int, CalledAgent] | None:
        """Returns an agent and its rank, unless the caller is none, or may not enter."""
        hello, proof = caller.answer[: call_back.HELLO.size], caller.answer[call_back.HELLO.size :]
        rank, _, called, name = call_back.HELLO.unpack(hello)
        expected = call_back.proof(self._key, caller.challenge, hello)
        if not hmac.compare_digest(proof, expected) or rank not in self._awaited:
            return None
        session = call_back.session(
            self._key, caller.challenge, caller.answer, call_back.AS_LAUNCHER
        )
        call_back.keep_alive(caller.connection)
        # Somebody passes a connection on that has come to another address than was called.
        is_direct = called == call_back.pack_address(caller.connection.getsockname()[:2])
        verdict = call_back.WELCOME if is_direct else call_back.NOT_CALLED_HERE
        caller.connection.send(session.sealer.seal(verdict))
        if not is_direct:
            return None
        host = name.rstrip(b"\0").decode(errors="replace")
        return rank, CalledAgent(caller.connection, session, caller.address, host)
