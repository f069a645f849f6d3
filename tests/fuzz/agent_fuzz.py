"""An agent's states: a launcher says anything, in any order, while ranks do what programs may do.

The agent ends without an exception once its stdin has ended. It tells the launcher what a rank has
written, and no news that an engine would not tell. No process of its ranks is left, and no
descriptor of theirs.
"""

import contextlib
import fcntl
import gc
import json
import os
import re
import selectors
import shutil
import signal
import struct
import sys

import atheris
from machine_input import Input

with atheris.instrument_imports():
    from perseus.run import agent, guardian, processes
    from perseus.run import agent_protocol as protocol

SHELL = shutil.which("bash") or "/bin/sh"  # dash knows no descriptor above 9
#: What ranks do, and all that they may write to stdout; None: anything.
PROGRAMS: list[tuple[str, bytes | None]] = [
    ("exit 3", b""),
    ("echo out; echo err >&2", b"out\n"),
    ("exec cat", None),
    ("exec sleep 1000", b""),
    ("trap '' TERM INT; echo out; while :; do sleep 1000; done", b"out\n"),
    ("sleep 1000 & echo out", b"out\n"),
    ("setsid sleep 1000 & exec sleep 1000", b""),
    ("kill -9 $$", b""),
    ("kill -STOP $$; echo out", b"out\n"),
    ("exec >&- 2>&-; exec sleep 1000", b""),
    ("head -c 300000 /dev/zero", bytes(300000)),
    ("exec yes", None),
    ("exec <&-; echo out", b"out\n"),
    (
        "printf 'stranger lost' >&$PERSEUS_NEWS_FD; printf \"$WORLD met 0 1 2\" >&$PERSEUS_NEWS_FD",
        b"",
    ),
    (
        'printf "$WORLD met 0" >&$PERSEUS_NEWS_FD; (printf "$WORLD STRANGER" >&$PERSEUS_NEWS_FD);'
        "printf '' >&$PERSEUS_NEWS_FD; printf \"$WORLD 9 lost\" >&$PERSEUS_NEWS_FD",
        b"",
    ),
    ("trap 'echo out' USR1; kill -USR1 $$; printf r >&$PERSEUS_RESULT_FD", b"out\n"),
]
WORLD = "0123456789abcdef" * 2
COMMANDS = (
    *(
        protocol.TERMINATE,
        protocol.KILL_ALL,
        protocol.HOLD,
        protocol.GO_ON,
        protocol.KILL,
        protocol.SIGNAL,
    ),
    *(protocol.INPUT, protocol.ASK),
)
MOST_STEPS = 12
MOST_TURNS = 5000
HANGS_AFTER = 10.0  # seconds
PIPE_BYTES = 1 << 20


def job_of(source: Input) -> tuple[dict, bytes, list[int]]:
    """Returns a job, what follows it, and the program of each rank."""
    options = source.number()
    payload = b"p" * 100 if options & 1 else b""
    programs = [source.number() % len(PROGRAMS) for _ in range(1 + (options >> 1 & 3) % 3)]
    job = {
        "command": ["./nothing"] if options >= 0xF8 else [SHELL, "-c", 'eval "$PROGRAM"'],
        "directory": "/",
        "environment": {"PATH": os.environ["PATH"], "WORLD": WORLD},
        "grace": 0.02 * (options >> 3 & 1),
        "local_size": len(programs),
        "shares_processors": bool(options & 0x10),
        "ranks": [
            {"rank": rank, "environment": {"PROGRAM": PROGRAMS[program][0]}}
            for rank, program in enumerate(programs)
        ],
        "payload_bytes": len(payload),
        "forwards_stdin": bool(options & 0x20),
    }
    return job, payload, programs


class Launcher:
    """The other end of the agent's stdin and stdout."""

    def __init__(self, source: Input):
        self.job, self.payload, self.programs = job_of(source)
        self.source = source
        self.fed = b""  # to the stdin of rank 0
        self.steps = 0
        self.said = b""  # by the agent
        self.agents_stdin, self.stdin = os.pipe()
        self.stdout, self.agents_stdout = os.pipe()
        for end in (self.stdin, self.agents_stdout):
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self.stdout, False)
        self.is_stdin_open = self.is_stdout_open = True
        text = json.dumps(self.job).encode()
        os.write(self.stdin, struct.pack("!I", len(text)) + text + self.payload)

    def step(self) -> bool:
        """Says something, or closes stdin; returns False if it has nothing more to say."""
        self.steps += 1
        if not self.is_stdin_open:
            return False
        if not self.source.rest or self.steps > MOST_STEPS:
            self.close_stdin()
            return True
        what = self.source.number() % 12
        if what < len(COMMANDS):
            os.write(self.stdin, self._command(COMMANDS[what]))
        elif what == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        elif what == 9:
            self._close_stdout()
        elif what == 10:
            os.write(self.stdin, self.source.bytes(self.source.number()))
            self.close_stdin()
        return True

    def _command(self, command: bytes) -> bytes:
        if command == protocol.KILL:
            return command + protocol.RANK.pack(self.source.number() % 4)
        if command == protocol.SIGNAL:
            return command + protocol.NUMBER.pack(self.source.number())
        if command == protocol.INPUT:
            count = self.source.number()
            data = bytes(100_000) if count == 255 else self.source.bytes(count)
            self.fed += data
            return command + protocol.COUNT.pack(len(data)) + data
        return command

    def close_stdin(self) -> None:
        if self.is_stdin_open:
            os.close(self.stdin)
        self.is_stdin_open = False

    def _close_stdout(self) -> None:
        if self.is_stdout_open:
            os.close(self.stdout)
        self.is_stdout_open = False

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.is_stdout_open and (data := os.read(self.stdout, PIPE_BYTES)):
                self.said += data

    def close(self) -> None:
        self.close_stdin()
        self._close_stdout()

    def check(self) -> None:
        """Checks what the agent has said."""
        assert self.said.startswith(protocol.MAGIC) or not self.is_stdout_open
        at = len(protocol.MAGIC)
        outputs: dict[int, bytes] = dict.fromkeys(range(len(self.programs)), b"")
        ended: dict[int, bytes] = {}
        while len(self.said) - at >= protocol.HEADER.size:
            kind, rank, length = protocol.HEADER.unpack_from(self.said, at)
            at += protocol.HEADER.size + length
            payload = self.said[at - length : at]
            assert rank in outputs
            if kind == protocol.HERE:
                continue  # the agent speaks for itself
            assert rank not in ended, f"rank {rank} says {payload!r} after its end"
            if kind == protocol.STDOUT:
                outputs[rank] += payload
            elif kind == protocol.EXIT:
                ended[rank] = payload
            elif kind == protocol.NEWS:
                assert re.fullmatch(WORLD.encode() + b" (met [0-2 ]+|9 lost)", payload)
            else:
                assert kind in (
                    protocol.STDERR,
                    protocol.RESULT,
                    protocol.ERROR,
                    protocol.INPUT_TAKEN,
                )
        for rank, output in outputs.items():
            program, expected = PROGRAMS[self.programs[rank]]
            if expected is not None:
                assert expected.startswith(output)
                assert ended.get(rank) != b"0" or output == expected
            if program == "exec cat" and rank == 0 and self.job["forwards_stdin"]:
                assert self.fed.startswith(output)


class Selector(selectors.DefaultSelector):
    """Has the launcher take its next step whenever the agent has nothing to do, or much."""

    launcher: Launcher

    def select(self, timeout: float | None = None) -> list:
        self.turns = getattr(self, "turns", 0) + 1
        assert self.turns < MOST_TURNS, "the agent does not end"
        self.launcher.read()
        ready = super().select(0)
        if ready and self.turns % 8:
            return ready
        if self.launcher.step():
            return super().select(0.002)
        if ready:
            return ready
        ready = super().select(HANGS_AFTER if timeout is None else timeout)
        assert ready or timeout is not None, "the agent waits for nothing"
        return ready


def open_descriptors() -> set[int]:
    with os.scandir("/proc/self/fd") as entries:
        return {int(entry.name) for entry in entries}


def run_agent() -> None:
    try:
        agent.main()
    except SystemExit as end:  # stdin ended in the middle of a command
        assert not end.code
        guardian.end_descendants()  # as the guardian does


def one_input(data: bytes) -> None:
    before = open_descriptors()
    launcher = Selector.launcher = Launcher(Input(data))
    ends = (launcher.agents_stdin, launcher.agents_stdout)
    kept = [os.dup(standard) for standard in (0, 1)]
    for standard, end in enumerate(ends):
        os.dup2(end, standard)
        os.close(end)
    try:
        run_agent()
    finally:
        launcher.read()
        launcher.close()
        for standard, copy in enumerate(kept):
            os.dup2(copy, standard)
            os.close(copy)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
    launcher.check()
    assert processes.descendants(os.getpid()) == [], "processes are left"
    gc.collect()  # its objects would close their descriptors later, when others have those numbers
    # A pipe that wakes the agent, the ranks' input, and that of a rank that could not be started.
    left = open_descriptors() - before
    assert len(left) <= 4, f"{len(left)} descriptors are left"
    for fd in left:
        with contextlib.suppress(OSError):
            os.close(fd)


agent.guardian.guard = lambda ignored: None
selectors.DefaultSelector = Selector
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
atheris.Setup(sys.argv, one_input)
sys.argv = ["agent.py"]
gc.freeze()
atheris.Fuzz()
