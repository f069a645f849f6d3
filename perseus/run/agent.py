"""Runs a job's ranks on one host, for a launcher at the other end of stdin and stdout.

It is run as a program and needs only the standard library, so that it starts quickly and works over
ssh. The launcher sends one job (a length, JSON, and the bytes that each rank is to read from its
stdin, if any), and later commands: KILL with a rank; HOLD, and GO_ON, if output comes faster than
it is read; SIGNAL with a signal for all ranks; INPUT with bytes for the stdin of rank 0; TERMINATE,
or KILL_ALL. The agent sends frames: a kind, a rank and a payload. On TERMINATE, and when stdin ends
because the launcher has finished or died, the agent ends everything that the ranks have started: by
SIGTERM, and by SIGKILL after the job's grace, which is over once all of that has ended.

It has one thread, and a guardian (guardian.py) as its parent. Each rank leads a session of its own.
The agent adopts the processes that ranks leave behind, so that it can find and end them.

mpirun starts `agent.py --call-back` once for each rank. This agent connects to the launcher whose
address and key are in PERSEUSRUN_CALL_BACK, and then works in the same way over that connection.
First each side proves to the other that it knows the key, which is never sent:

    launcher  Greeting  a random challenge
    agent     Hello     its rank, a challenge of its own and its host's name; and its proof, which
                        is the HMAC over its role, the launcher's challenge and the hello
    launcher  Welcome   its proof, over its own role, the same challenge and the hello
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "__main__":
    from perseus.run import guardian, processes
    from perseus.run.news_socket import NewsSocket
    from perseus.run.rank_input import RankInput
else:  # run by its path: what is beside this file needs no package either
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import guardian
    import processes
    from news_socket import NewsSocket
    from rank_input import RankInput

MAGIC = b"\nperseus-agent-1\n"
HEADER = struct.Struct("!BII")  # kind, rank, length of the payload
STDOUT, STDERR, RESULT, EXIT, ERROR, NEWS, INPUT_TAKEN = range(7)
TERMINATE, KILL, KILL_ALL, HOLD, GO_ON, SIGNAL, INPUT = b"T", b"K", b"A", b"H", b"G", b"S", b"I"
RANK = struct.Struct("!I")  # follows KILL
NUMBER = struct.Struct("!B")  # of a signal, follows SIGNAL
COUNT = struct.Struct("!I")  # of bytes; follows INPUT, before the bytes; and in INPUT_TAKEN
RESULT_FD = "PERSEUS_RESULT_FD"
NEWS_FD = "PERSEUS_NEWS_FD"  # where the engine reports on other ranks
CALL_BACK = "PERSEUSRUN_CALL_BACK"  # "host port key"
THREADS = "OMP_NUM_THREADS"
CALL_BACK_SECONDS = 30.0  # the launcher must prove itself within these
PAUSE_BETWEEN_CALLS_SECONDS = 0.1
CHALLENGE_BYTES = 16
HELLO = struct.Struct(f"!I{CHALLENGE_BYTES}s64s")  # rank, challenge, name of the host
PROOF_BYTES = 32
AS_AGENT, AS_LAUNCHER = b"perseusrun agent", b"perseusrun launcher"
# The variables by which MPI's launchers tell a rank: Open MPI, MVAPICH, MPICH and its family, PMIx.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

_PIECE = 65536
_LARGE_PIECE = 1 << 20
_MOST_NEWS = 1000  # messages that are read of a rank that has ended
#: The agent ignores these signals, which are for the launcher: it ends the job, or has the agents
#: pass them on to the ranks.
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Rank:
    """A process of the job, and those of its pipes that are still open."""

    def __init__(
        self,
        rank: int,
        process: subprocess.Popen[bytes],
        pipes: dict[int, IO[bytes] | NewsSocket],
    ):
        self.rank = rank
        self.process = process
        self.pipes = pipes
        self.running = True


class Agent:
    def __init__(self, job: dict[str, Any]):
        self._job = job
        payload_bytes = job["payload_bytes"]
        self._payload = _receive_file(payload_bytes) if payload_bytes else None
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, Rank] = {}  # by process id
        self._threads = threads_of_a_rank(job["local_size"], is_shared=job["shares_processors"])
        self._kill_at: float | None = None  # when the grace ends; None before it has begun
        self._asked_to_end: set[int] = set()  # the children that have got SIGTERM
        self._has_killed = False
        self._input: RankInput | None = None  # the stdin of rank 0, if it is one of ours
        self._holds = False  # whether to leave the ranks' output in their pipes

    def run(self) -> None:
        processes.adopt_orphans()
        wakeup_read, wakeup_write = os.pipe()
        for end in (wakeup_read, wakeup_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._terminate())
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, self._read_command)
        self._selector.register(
            wakeup_read, selectors.EVENT_READ, lambda: os.read(wakeup_read, 4096)
        )
        self._start()
        while self._has_work():
            for key, _ in self._selector.select(self._seconds_left()):
                key.data()
            self._reap()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = time.monotonic() + 0.1
                self._has_killed = True
        guardian.end_descendants()

    def _has_work(self) -> bool:
        """Returns whether a rank runs, or a process that has the grace.

        A rank may be a shell that SIGTERM ends before the program that it has started.
        """
        if any(rank.running for rank in self._ranks.values()):
            return True
        has_grace = self._kill_at is not None and not self._has_killed
        return has_grace and bool(processes.descendants(os.getpid()))

    def _start(self) -> None:
        for place in self._job["ranks"]:
            if self._kill_at is not None:
                return
            try:
                self._start_rank(place["rank"], place["environment"])
            except OSError as error:
                message = f"cannot start '{self._job['command'][0]}': {error.strerror}"
                if error.filename not in (None, self._job["command"][0]):
                    message += f": {error.filename}"
                _send(ERROR, place["rank"], message.encode())
                self._terminate()

    def _start_rank(self, number: int, environment: dict[str, str]) -> None:
        result_read, result_write = os.pipe()
        news = NewsSocket(number)
        stdin = self._open_stdin(number)
        whole = {**os.environ, **self._job["environment"], **environment}
        if self._threads and THREADS not in whole:
            whole[THREADS] = str(self._threads)
        whole[NEWS_FD] = str(news.other_end.fileno())
        kept = [news.other_end.fileno()]
        if self._payload is not None:
            widen(result_write)
            whole[RESULT_FD] = str(result_write)
            kept.append(result_write)
        if whole.get("PMI_FD", "").isdecimal():
            kept.append(int(whole["PMI_FD"]))  # the connection to MPICH's launcher
        try:
            process = subprocess.Popen(
                self._job["command"],
                cwd=self._job["directory"],
                env=whole,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=kept,
                start_new_session=True,
                preexec_fn=self._in_child,
            )
        except OSError:
            os.close(result_read)
            news.close()
            raise
        finally:
            os.close(stdin)
            os.close(result_write)
            news.other_end.close()
        assert process.stdout and process.stderr
        news.process = process.pid
        pipes: dict[int, IO[bytes] | NewsSocket] = {
            STDOUT: process.stdout,
            STDERR: process.stderr,
            RESULT: os.fdopen(result_read, "rb"),
            NEWS: news,
        }
        rank = self._ranks[process.pid] = Rank(number, process, pipes)
        for kind, pipe in pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._watch(rank, kind)

    def _watch(self, rank: Rank, kind: int) -> None:
        self._selector.register(
            rank.pipes[kind], selectors.EVENT_READ, functools.partial(self._forward, rank, kind)
        )

    def _hold(self, holds: bool) -> None:
        """Leaves the ranks' output in their pipes, so that ranks wait that write more, or goes on.

        All else that ranks say is still passed on.
        """
        if holds == self._holds:
            return
        self._holds = holds
        for rank in self._ranks.values():
            for kind in (STDOUT, STDERR):
                if kind in rank.pipes and holds:
                    self._selector.unregister(rank.pipes[kind])
                elif kind in rank.pipes:
                    self._watch(rank, kind)

    def _open_stdin(self, number: int) -> int:
        """Opens what a rank reads. Each rank reads the payload from its start."""
        if number == 0 and self._job["forwards_stdin"]:
            self._input = RankInput(self._selector, _send_taken)
            return self._input.read_end
        path = os.devnull if self._payload is None else f"/proc/self/fd/{self._payload}"
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _in_child(self) -> None:
        """Runs before exec. The rank must not outlive the agent, and must not ignore signals."""
        processes.end_with_parent(signal.SIGKILL)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)

    def _read_command(self) -> None:
        command = os.read(sys.stdin.fileno(), 1)
        if command == KILL:
            (number,) = RANK.unpack(_receive(RANK.size))
            for process, rank in self._ranks.items():
                if rank.rank == number and rank.running:
                    for descendant in [*processes.descendants(process), process]:
                        processes.kill(descendant, signal.SIGKILL)
            return
        if command == SIGNAL:
            (number,) = NUMBER.unpack(_receive(NUMBER.size))
            for process, rank in self._ranks.items():
                if rank.running:
                    processes.kill(process, number)
            return
        if command == INPUT:
            (count,) = COUNT.unpack(_receive(COUNT.size))
            data = _receive(count)
            if self._input:
                self._input.write(data)
            return
        if command in (HOLD, GO_ON):
            self._hold(command == HOLD)
            return
        if not command:
            self._selector.unregister(sys.stdin.fileno())
        self._terminate()
        if command == KILL_ALL:
            self._kill_at = time.monotonic()

    def _forward(self, rank: Rank, kind: int) -> bool:
        """Sends what a pipe holds to the launcher; returns whether there may be more."""
        pipe = rank.pipes[kind]
        try:
            if isinstance(pipe, NewsSocket):
                data = pipe.read()
            else:
                data = _read(pipe, _LARGE_PIECE if kind == RESULT else _PIECE)
        except BlockingIOError:
            return False
        if data is None:
            self._close(rank, kind)
            return False
        if data:
            _send(kind, rank.rank, data)
        return True

    def _drain(self, rank: Rank, kind: int) -> None:
        """Sends what a pipe holds, and no more: a child of the rank may write without end."""
        pipe = rank.pipes[kind]
        most = _MOST_NEWS if isinstance(pipe, NewsSocket) else 1 + _capacity(pipe) // _PIECE
        for _ in range(most):
            if not self._forward(rank, kind):
                return

    def _close(self, rank: Rank, kind: int) -> None:
        pipe = rank.pipes.pop(kind)
        if not (self._holds and kind in (STDOUT, STDERR)):
            self._selector.unregister(pipe)
        pipe.close()

    def _reap(self) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            self._asked_to_end.discard(child)
            if self._kill_at is not None:
                self._ask_children_to_end()
            rank = self._ranks.get(child)
            if rank is None:
                continue  # an orphan of a rank
            rank.running = False
            rank.process.returncode = os.waitstatus_to_exitcode(status)
            # A child of the rank may hold its pipes open: take what is in them now, and close them.
            for kind in list(rank.pipes):
                self._drain(rank, kind)
                if kind in rank.pipes:
                    self._close(rank, kind)
            if self._input and rank.rank == 0:
                self._input.close()
            _send(EXIT, rank.rank, str(rank.process.returncode).encode())

    def _terminate(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._job["grace"]
            self._ask_children_to_end()
            self._signal_all(signal.SIGCONT)  # a stopped process only ends once it goes on

    def _ask_children_to_end(self) -> None:
        """Sends SIGTERM to each rank, and to the processes of ranks that have ended.

        A rank that saves its work may need the processes that it has started: PyTorch's DataLoader
        raises an exception when one of its workers ends. So they get SIGTERM after their rank has
        ended, when they are our children.
        """
        for child in processes.children().get(os.getpid(), ()):
            if child not in self._asked_to_end:
                self._asked_to_end.add(child)
                processes.kill(child, signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for child in processes.descendants(os.getpid()):
            processes.kill(child, number)

    def _seconds_left(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())


def threads_of_a_rank(local_size: int, *, is_shared: bool) -> int | None:
    """Returns what OMP_NUM_THREADS should be; None for a rank that has its host for itself."""
    if local_size == 1:
        return None
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # The agent can import no package, but this file of one needs none either.
    processors = runpy.run_path(os.path.join(packages, "perseus_core/processors.py"))
    threads: int = processors["share"](local_size, is_shared=is_shared)
    return threads


def widen(pipe: int) -> None:
    """Has a pipe hold much, if the system allows it, so that gigabytes change hands less often."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _LARGE_PIECE)


def _read(pipe: IO[bytes], most: int) -> bytes | None:
    return os.read(pipe.fileno(), most) or None


def _capacity(pipe: IO[bytes]) -> int:
    return fcntl.fcntl(pipe.fileno(), fcntl.F_GETPIPE_SZ)


def _send(kind: int, rank: int, payload: bytes) -> None:
    frame = HEADER.pack(kind, rank, len(payload)) + payload
    while frame:
        try:
            frame = frame[os.write(sys.stdout.fileno(), frame) :]
        except OSError:
            return  # the launcher has gone; stdin ends, too


def _send_taken(count: int) -> None:
    _send(INPUT_TAKEN, 0, COUNT.pack(count))


def _receive(length: int) -> bytes:
    return b"".join(_pieces(length))


def _receive_file(length: int) -> int:
    """Receives bytes into a new file that has no name, and returns its descriptor.

    It is in memory; before Linux 3.17, which lacks memfd_create, it is in the folder for temporary
    files.
    """
    try:
        file = os.memfd_create("perseus-stdin")
    except (AttributeError, OSError):
        import tempfile

        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    for piece in _pieces(length):
        while piece:
            piece = piece[os.write(file, piece) :]
    return file


def _pieces(length: int) -> Iterator[bytes]:
    """Yields what the launcher sends, in all these many bytes."""
    while length:
        piece = os.read(sys.stdin.fileno(), min(length, _LARGE_PIECE))
        if not piece:
            sys.exit(0)  # the launcher gave up before it sent a job
        length -= len(piece)
        yield piece


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


def _call_back() -> None:
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


def main() -> None:
    if sys.argv[1:] == ["--call-back"]:
        _call_back()
    guardian.guard(_IGNORED)
    os.write(sys.stdout.fileno(), MAGIC)
    (length,) = struct.unpack("!I", _receive(4))
    Agent(json.loads(_receive(length))).run()


if __name__ == "__main__":
    main()
