"""The launcher for `perseusrun --mpi`.

mpirun starts an agent for each rank, and the agents call back. So the ranks are watched, tagged,
ended and named as without mpirun, in the same way under every MPI. Each rank inherits the
environment in which MPI's launcher has started its agent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from perseus.run.acceptor import Acceptor, CalledAgent
from perseus.run.call_back import CALL_BACK
from perseus.run.ending import AGENT_SECONDS
from perseus.run.environment import torch_environment
from perseus.run.failures import how_it_ended, name_ranks
from perseus.run.host_connection import AGENT, AgentConnection
from perseus.run.hosts import is_local
from perseus.run.job import Job
from perseus.run.launcher import Launcher
from perseus.run.master import Master
from perseus.run.output import Output
from perseus.run.silence import SILENCE_SECONDS, SilenceWatch

# How long mpirun may take to end once all ranks have.
MPIRUN_SECONDS = 10.0


class MpiLauncher(Launcher):
    """Runs one job under mpirun.

    Args:
      mpirun: makes mpirun's command line from the command that it is to run.
      mpirun_environment: variables for the end of mpirun's environment.
      address: where agents reach the launcher.
      listen_on: the same address, or "" for every interface.
      is_bound: whether mpirun may bind each rank to processors of its own.
    """

    def __init__(
        self,
        job: Job,
        output: Output,
        mpirun: Callable[[Sequence[str]], Sequence[str]],
        mpirun_environment: Mapping[str, str],
        *,
        address: str,
        listen_on: str,
        is_bound: bool,
    ):
        super().__init__(job, output)
        self._mpirun_command = mpirun
        self._mpirun_environment = mpirun_environment
        self._address = address
        self._listen_on = listen_on
        self._is_bound = is_bound
        self._key = secrets.token_hex(32)
        self._awaited = set(self._running)  # ranks whose agents have not called yet
        self._called: dict[int, CalledAgent] = {}  # until all have called, and the ranks begin
        self._master: Master | None = None
        self._silence = SilenceWatch()
        self._is_started = False
        self._mpirun_line = b""  # the incomplete last line of its output

    def _start(self) -> None:
        self._watch_writers()
        self._acceptor = Acceptor(
            self._selector, self._listen_on, self._key, self._awaited, self._entered
        )
        command = list(self._mpirun_command([*AGENT, "--call-back"]))
        self._messages.log(shlex.join(command))
        environment = {**os.environ, **self._job.environment}
        environment[CALL_BACK] = f"{self._address} {self._acceptor.port} {self._key}"
        for name, value in self._mpirun_environment.items():
            environment.pop(name, None)  # so that the variable comes last
            environment[name] = value
        self._mpirun_fd, mpirun_runs = os.pipe()
        # A session of its own: the terminal's Ctrl-C is for the launcher alone.
        self._mpirun = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._mpirun.stdout
        self._mpirun_output = self._mpirun.stdout
        os.set_blocking(self._mpirun_output.fileno(), False)
        self._selector.register(
            self._mpirun_output, selectors.EVENT_READ, self._forward_mpirun_output
        )
        # A thread, as pidfd_open came with Linux 5.3 only.
        self._selector.register(self._mpirun_fd, selectors.EVENT_READ, self._mpirun_ended)
        threading.Thread(target=_close_after, args=(self._mpirun, mpirun_runs), daemon=True).start()
        self._start_deadline = time.monotonic() + self._job.start_timeout
        self._is_started = True

    def _forward_mpirun_output(self) -> bool:
        """Prints mpirun's own output, unless the job has failed and that has been reported.

        Returns whether there may be more.
        """
        if self._mpirun_output.closed:
            return False
        try:
            words = os.read(self._mpirun_output.fileno(), 65536)
        except BlockingIOError:
            return False
        *lines, self._mpirun_line = (self._mpirun_line + words).split(b"\n")
        if not words:
            self._selector.unregister(self._mpirun_output)
            self._mpirun_output.close()
            lines += [self._mpirun_line] if self._mpirun_line else []
        if not self.failure:
            for line in lines:
                self._output.forward(line)
        return bool(words)

    def _entered(self, rank: int, called: CalledAgent) -> None:
        self._awaited.remove(rank)
        self._messages.log(f"rank {rank} is on host {called.host}")
        self._called[rank] = called
        if not self._awaited:
            self._acceptor.close()
            self._begin()

    def _begin(self) -> None:
        """Starts the ranks, now that the host of each is known."""
        first = self._called[0]
        here = is_local(first.address)
        places = {rank: (called.address, called.host) for rank, called in self._called.items()}
        environment = {**os.environ, **self._job.environment}
        several = len(set(places.values())) > 1
        self._master = master = Master(environment, here=here, several_hosts=several)
        for rank, called in sorted(self._called.items()):
            beside = sorted(other for other in places if places[other] == places[rank])
            place = torch_environment(rank, len(places), beside.index(rank), len(beside))
            # If rank 0 is here, it is reached at our address.
            place |= master.environment(self._address if here else first.address)
            connection = self._connect(rank, called, place, len(beside))
            self._add(connection)
            self._silence.add(connection)
        self._called.clear()

    def _connect(
        self, rank: int, called: CalledAgent, place: dict[str, str], local_size: int
    ) -> AgentConnection:
        # Each end gets a descriptor of its own, so that each can be closed separately.
        with called.connection:
            fd = called.connection.fileno()
            stdin = os.fdopen(os.dup(fd), "wb", buffering=0)
            stdout = os.fdopen(os.dup(fd), "rb", buffering=0)
        description = self._description_of(rank, place, local_size)
        return AgentConnection(
            called.host, [rank], stdin, stdout, description, self._job.stdin, called.session
        )

    def _description_of(
        self, rank: int, place: dict[str, str], local_size: int
    ) -> dict[str, object]:
        settings = dict(self._job.environment)
        # Others may read what is sent here, and mpirun carries it, too.
        settings.pop("PERSEUS_SECRET", None)
        return {
            "command": list(self._job.command),
            "directory": self._job.directory,
            "environment": {**settings, "PYTHONUNBUFFERED": "1"},
            "forwards_stdin": self._job.stdin_fd is not None,
            "grace": self._job.grace,
            "local_size": local_size,
            "shares_processors": not self._is_bound,
            "ranks": [{"rank": rank, "environment": place}],
        }

    def _mpirun_ended(self) -> None:
        self._selector.unregister(self._mpirun_fd)
        status = self._mpirun.wait()
        while self._forward_mpirun_output():
            pass
        # Agents that have called report how their ranks ended.
        how, code = how_it_ended(status)
        self._give_up_awaited(f"mpirun {how} before it had started", code or 1)

    def _lost(self, host: AgentConnection) -> None:
        while self._forward_mpirun_output():
            pass  # the agent may have said why it ends
        super()._lost(host)

    def _next_deadline(self) -> float:
        return min(
            super()._next_deadline(),
            self._acceptor.next_deadline(),
            self._silence.next_deadline,
        )

    def _handle_deadlines(self, now: float) -> None:
        super()._handle_deadlines(now)
        self._acceptor.handle_deadlines(now)
        for host in self._silence.find_silent(now):
            host.give_up(f"its agent has said nothing for {SILENCE_SECONDS:.0f} s")
            self._leave(host)

    def _check_started(self) -> None:
        self._give_up_awaited(
            f"within the start time-out of {self._job.start_timeout} s mpirun has not started", 1
        )

    def _give_up_awaited(self, what: str, exit_code: int) -> None:
        if not self._awaited:
            return
        ranks = name_ranks(sorted(self._awaited))
        self._expect_no_more()
        self._failures.fail(None, f"{what} {ranks}", exit_code)

    def _expect_no_more(self) -> None:
        for rank in [*self._awaited, *self._called]:
            self._running.pop(rank, None)
        for called in self._called.values():
            called.connection.close()
        self._called.clear()
        self._awaited.clear()
        self._acceptor.close()

    def _terminate(self) -> None:
        super()._terminate()
        if self._awaited:
            self._expect_no_more()
            self._mpirun.send_signal(signal.SIGTERM)

    def _stop(self) -> None:
        super()._stop()
        if not self._is_started:
            return  # for want of a port or of descriptors
        self._acceptor.close()
        if self.failure and self._master and (stranger := self._master.note_on_stranger()):
            self._messages.say(stranger)
        os.close(self._mpirun_fd)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # After an orderly end, mpirun waits for its daemons on other hosts.
            self._mpirun.wait(AGENT_SECONDS if self.failure else MPIRUN_SECONDS)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._mpirun.poll() is None:
                self._mpirun.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._mpirun.wait(AGENT_SECONDS)
        while self._forward_mpirun_output():
            pass
        self._mpirun_output.close()


def _close_after(process: subprocess.Popen[bytes], fd: int) -> None:
    """Closes the descriptor when the process has ended."""
    process.wait()
    os.close(fd)
