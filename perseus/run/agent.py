"""Runs a job's ranks on one host, for a launcher at the other end of stdin and stdout.

It is run as a program and needs only the standard library, so that it starts quickly and works over
ssh. agent_protocol.py has what the two say to each other. On TERMINATE, and when stdin ends because
the launcher has finished or died, the agent ends everything that the ranks have started: by
SIGTERM, and by SIGKILL after the job's grace, which is over once all of that has ended. If the job
is to outlive its launcher, the agent does so only on TERMINATE: when stdin ends without it, the
ranks go on, until `agent.py --take-over` hands another launcher over (without_launcher.py).

It has one thread, and a guardian (guardian.py) as its parent. Each rank leads a session of its own.
The agent adopts the processes that ranks leave behind, so that it can find and end them.

mpirun starts `agent.py --call-back` once for each rank. This agent connects to the launcher
(call_back.py), and then works in the same way over that connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "__main__":
    from perseus.run import agent_protocol as protocol
    from perseus.run import guardian, job_folder, processes
    from perseus.run.call_back import call_back
    from perseus.run.drain_request import DrainRequest
    from perseus.run.grace import Grace
    from perseus.run.launcher_silence import LauncherSilence
    from perseus.run.launcher_stream import END, LauncherStream
    from perseus.run.rank_input import RankInput
    from perseus.run.rank_pipes import RankPipes
    from perseus.run.rank_process import IGNORED, Rank, threads_of_a_rank
    from perseus.run.without_launcher import NEVER, TAKE_OVER, WithoutLauncher, hand_over
else:  # run by its path: what is beside this file needs no package either
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import agent_protocol as protocol
    import guardian
    import job_folder
    import processes
    from call_back import call_back
    from drain_request import DrainRequest
    from grace import Grace
    from launcher_silence import LauncherSilence
    from launcher_stream import END, LauncherStream
    from rank_input import RankInput
    from rank_pipes import RankPipes
    from rank_process import IGNORED, Rank, threads_of_a_rank
    from without_launcher import NEVER, TAKE_OVER, WithoutLauncher, hand_over


class Agent:
    def __init__(self, stream: LauncherStream):
        self._stream = stream
        (length,) = struct.unpack("!I", stream.receive(4))
        self._job: dict[str, Any] = json.loads(stream.receive(length))
        payload_bytes = self._job["payload_bytes"]
        self._payload = stream.receive_file(payload_bytes) if payload_bytes else None
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, Rank] = {}  # by process id
        self._threads = threads_of_a_rank(
            self._job["local_size"], is_shared=self._job["shares_processors"]
        )
        self._grace = Grace(self._job["grace"])
        self._drain_request = DrainRequest(self._job.get("seconds_to_drain"))
        self._silence = LauncherSilence(self._job.get("most_silence"))
        self._input: RankInput | None = None  # the stdin of rank 0, if it is one of ours
        self._pipes = RankPipes(self._selector, self._send, lambda: not self._stream.is_full)
        self._outlives: WithoutLauncher | None = None  # if this agent may outlive its launcher
        self._has_lost_launcher = False  # which has closed our stdin, or was killed

    def run(self) -> None:
        processes.adopt_orphans()
        wakeup_read, wakeup_write = os.pipe()
        for end in (wakeup_read, wakeup_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._take_sigterm())
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_commands)
        self._selector.register(
            wakeup_read, selectors.EVENT_READ, lambda: os.read(wakeup_read, 4096)
        )
        self._stream.never_block(self._selector)
        if how := self._job.get("outlives"):
            with contextlib.suppress(OSError):  # then it ends with its launcher
                self._outlives = WithoutLauncher(
                    how, self._selector, self._take_over, self._terminate
                )
        self._start()
        for command, argument in self._stream.waiting_commands():
            self._obey(command, argument)
        while (has_ranks := self._has_ranks()) or time.monotonic() < self._words_deadline():
            for key, _ in self._selector.select(self._seconds_left(has_ranks=has_ranks)):
                key.data()
            self._pipes.look_for_room()
            self._ask_to_drain()  # before it says that ranks have ended, on the same SIGTERM
            self._reap()
            if time.monotonic() >= self._silence_deadline():
                self._tell_all(self._silence.farewell())
                self._terminate()
            if self._outlives:
                self._let_go_of_waiting(self._outlives)
            self._grace.handle_deadline()
        guardian.end_descendants()
        if self._outlives:
            self._outlives.close()
        elif self._has_lost_launcher and (path := self._job.get("launcher_socket")):
            job_folder.remove_socket_of_dead(path)

    def _has_ranks(self) -> bool:
        """Returns whether a rank runs, or a process that has the grace."""
        return any(rank.running for rank in self._ranks.values()) or self._grace.is_awaited()

    def _words_deadline(self) -> float:
        """Returns until when the launcher may take the last words, once nothing runs any more.

        A launcher that has been stopped takes them when it goes on. One that has ended the job, or
        that is not heard any more, is not stopped.
        """
        if not self._stream.has_unsent:
            return 0.0
        return self._stream.stall_deadline() if self._grace.has_begun else NEVER

    def _start(self) -> None:
        for place in self._job["ranks"]:
            if self._grace.has_begun:
                return
            try:
                self._start_rank(place["rank"], place["environment"])
            except OSError as error:
                message = f"cannot start '{self._job['command'][0]}': {error.strerror}"
                if error.filename not in (None, self._job["command"][0]):
                    message += f": {error.filename}"
                self._send(protocol.ERROR, place["rank"], message.encode())
                self._terminate()

    def _start_rank(self, number: int, environment: dict[str, str]) -> None:
        whole = {**os.environ, **self._job["environment"], **environment}
        if self._threads and protocol.THREADS not in whole:
            whole[protocol.THREADS] = str(self._threads)
        rank = Rank(
            number,
            self._job["command"],
            self._job["directory"],
            whole,
            self._open_stdin(number),
            has_result=self._payload is not None,
            has_driver=self._job.get("has_driver", False),
        )
        self._ranks[rank.process.pid] = rank
        if self._outlives:
            self._outlives.add_rank(number)
        self._pipes.add(rank)

    def _open_stdin(self, number: int) -> int:
        """Opens what a rank reads. Each rank reads the payload from its start."""
        if number == 0 and self._job["forwards_stdin"]:
            self._input = RankInput(self._selector, self._send_taken)
            return self._input.read_end
        path = os.devnull if self._payload is None else f"/proc/self/fd/{self._payload}"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _send(self, kind: int, rank: int, payload: bytes) -> None:
        if self._outlives:
            self._outlives.says(kind, rank, payload)
            if self._outlives.is_alone:
                return
        self._stream.send(kind, rank, payload)

    def _send_taken(self, count: int) -> None:
        if not (self._outlives and self._outlives.is_alone):
            self._stream.send_taken(count)

    def _launcher_died(self, outlives: WithoutLauncher) -> None:
        """Goes on without a launcher."""
        outlives.launcher_died()
        if self._input:
            self._input.close()
        self._stream.forget_unsent()
        self._pipes.hold_output(False)

    def _take_over(self, stdin: int, stdout: int) -> None:
        """Goes on with another launcher."""
        assert self._outlives
        for fd, own in ((stdin, sys.stdin.fileno()), (stdout, sys.stdout.fileno())):
            os.dup2(fd, own, inheritable=False)
            os.close(fd)
        self._stream.begin_again()
        self._silence.hears()
        self._stream.write(protocol.MAGIC)
        self._outlives.begin_again(self._stream.send)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_commands)

    def _let_go_of_waiting(self, outlives: WithoutLauncher) -> None:
        """Ends ranks that have waited too long for another launcher."""
        now = time.monotonic()
        if outlives.is_over(now):
            self._tell_all(outlives.farewell())
            self._terminate()
        for number in outlives.abandoned(now):
            self._tell(number, outlives.farewell())
        for number in outlives.to_kill(now):
            self._kill(number)

    def _kill(self, number: int) -> None:
        for process, rank in self._ranks.items():
            if rank.rank == number and rank.running:
                for descendant in [*processes.descendants(process), process]:
                    processes.kill(descendant, signal.SIGKILL)

    def _silence_deadline(self) -> float:
        is_known = self._grace.has_begun or (self._outlives and self._outlives.is_alone)
        return NEVER if is_known else self._silence.deadline()

    def _read_commands(self) -> None:
        self._silence.hears()
        try:
            for command, argument in self._stream.commands():
                self._obey(command, argument)
        except protocol.NotAuthenticError:
            self._selector.unregister(sys.stdin.fileno())
            self._stream.say_not_authentic(self._job["ranks"][0]["rank"])
            self._terminate()

    def _obey(self, command: bytes, argument: bytes) -> None:
        if command == protocol.KILL:
            self._kill(protocol.RANK.unpack(argument)[0])
        elif command == protocol.SIGNAL:
            (number,) = protocol.NUMBER.unpack(argument)
            for process, rank in self._ranks.items():
                if rank.running:
                    processes.kill(process, number)
        elif command == protocol.INPUT:
            if self._input:
                self._input.write(argument[protocol.COUNT.size :])
        elif command == protocol.TELL:
            number, _ = protocol.RANK_AND_COUNT.unpack_from(argument)
            self._tell(number, argument[protocol.RANK_AND_COUNT.size :])
        elif command in (protocol.HOLD, protocol.GO_ON):
            self._pipes.hold_output(command == protocol.HOLD)
        elif command == protocol.ASK:
            self._stream.send(protocol.HERE, self._job["ranks"][0]["rank"], b"")
        else:
            if command == END:
                self._selector.unregister(sys.stdin.fileno())
                self._has_lost_launcher = True
                if self._outlives and not self._grace.has_begun:
                    return self._launcher_died(self._outlives)
            self._terminate()
            if command == protocol.KILL_ALL:
                self._grace.cut_short()

    def _tell_all(self, message: bytes) -> None:
        for rank in self._ranks.values():
            self._tell(rank.rank, message)

    def _tell(self, number: int, message: bytes) -> None:
        if self._outlives:
            self._outlives.is_told(number, message)
        for rank in self._ranks.values():
            if rank.rank == number and rank.running:
                self._pipes.tell(rank, message)

    def _reap(self) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            self._grace.note_ended(child)
            rank = self._ranks.get(child)
            if rank is None or not rank.running:
                continue  # an orphan of a rank, which may have the number of a rank that has ended
            rank.running = False
            rank.process.returncode = os.waitstatus_to_exitcode(status)
            self._pipes.take_rest(rank)
            if self._input and rank.rank == 0:
                self._input.close()
            self._send(protocol.EXIT, rank.rank, str(rank.process.returncode).encode())

    def _take_sigterm(self) -> None:
        is_alone = self._outlives is not None and self._outlives.is_alone  # so nobody drains it
        if is_alone or not self._drain_request.take_sigterm():
            self._terminate()

    def _ask_to_drain(self) -> None:
        if self._drain_request.must_be_passed_on():
            self._send(protocol.DRAIN, self._job["ranks"][0]["rank"], b"")
        deadline = self._drain_request.deadline()
        if deadline is not None and time.monotonic() >= deadline:
            self._terminate()

    def _terminate(self) -> None:
        if not self._grace.has_begun:
            for rank in self._ranks.values():
                if rank.running and rank.driver:
                    rank.driver.tell_of_end()
            self._grace.begin()

    def _seconds_left(self, *, has_ranks: bool) -> float | None:
        moments = [self._grace.deadline, self._silence_deadline()]
        if not has_ranks:
            moments.append(self._words_deadline())
        deadline = self._drain_request.deadline()
        if not self._grace.has_begun and deadline is not None:
            moments.append(deadline)
        if self._outlives:
            moments.append(self._outlives.next_deadline())
        soonest = min(moments)
        return None if soonest == NEVER else max(0.0, soonest - time.monotonic())


def main() -> None:
    if sys.argv[1:] == [TAKE_OVER]:
        return hand_over()
    session, rank = call_back() if sys.argv[1:] == ["--call-back"] else (None, 0)
    stream = LauncherStream(session)
    guardian.guard(IGNORED)
    stream.write(protocol.MAGIC)
    try:
        agent = Agent(stream)
    except protocol.NotAuthenticError:
        stream.say_not_authentic(rank)
        stream.end()
        sys.exit(1)
    agent.run()


if __name__ == "__main__":
    main()
