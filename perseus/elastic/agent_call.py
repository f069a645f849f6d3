"""Tells an agent to end that has lost its launcher."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import time

from perseus.elastic.job_record import Agent, JobRecord
from perseus.run.host_connection import AGENT
from perseus.run.remote_shell import RemoteShell
from perseus.run.without_launcher import GONE, TAKE_OVER

__all__ = ["EndCall"]


class EndCall:
    """A process that tells an agent to end, and runs until the agent has.

    Args:
      seconds: in which another host must be reached.

    Raises OSError or ValueError if it cannot be started.
    """

    def __init__(self, record: JobRecord, agent: Agent, shell: RemoteShell, seconds: int) -> None:
        command = [*AGENT, TAKE_OVER]
        if not agent.is_here:
            command = shell.wrap(agent.host, command, seconds)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._fault: str | None = None  # None: not known yet
        text = json.dumps(record.call_to(agent, "end")).encode()
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(struct.pack("!I", len(text)) + text)
            self._process.stdin.flush()

    def fault(self, deadline: float) -> str:
        """Waits until the agent has ended; returns why it has not, or "".

        An agent that is not there has ended before.
        """
        if self._fault is None:
            try:
                _, said = self._process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return "its agent has not ended"
            self._fault = self._fault_of(said)
        return self._fault

    def has_failed(self) -> bool:
        """Returns whether the agent could not be told."""
        return self._process.poll() is not None and self.fault(0.0) != ""

    def _fault_of(self, said: bytes) -> str:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        return "" if self._process.returncode == 0 or GONE in last else last or "it gave no reason"

    def close(self) -> None:
        if self._fault is None:
            self._process.kill()
            self._process.communicate()
