"""perseusrun on a terminal: what a user sees there, read by a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from perseus.run.screen import Screen, fit, wants_colours

LAUNCHER = [sys.executable, "-m", "perseus.run"]
#: A rank with a progress bar. It goes on once the test has made the file `go`.
BAR = """
import os, pathlib, sys, time
rank = os.environ["PERSEUS_RANK"]
for percent in range(101):
    print(f"\\r{'#' * (percent // 10)} {percent}% of rank {rank}", end="", file=sys.stderr)
if rank == "1":
    print("a line between", file=sys.stderr)
    print("\\r100% again", end="", file=sys.stderr)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
print(f"\\rend of rank {rank}", file=sys.stderr)
"""


class Terminal:
    """A program on a terminal of its own.

    Args:
      split: only stdout is the terminal; stderr is a pipe.
    """

    def __init__(
        self,
        command: list[str],
        folder: Path,
        *,
        columns: int = 60,
        lines: int = 20,
        split: bool = False,
        **environment: str,
    ):
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NO_COLOR", "FORCE_COLOR")
        }
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**inherited, "TERM": "xterm", **environment},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE if split else theirs,
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def shown(self) -> list[str]:
        """The lines on the screen down to the last one that is not empty."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip().split("\n")

    def read_until(self, is_reached: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_reached(self.shown):
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def read_to_end(self) -> list[str]:
        while self._read():
            pass
        return self.shown

    def colour(self, row: int, column: int) -> str:
        return str(self.screen.buffer[row][column].fg)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()
        os.close(self._ours)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 60)[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the last process with the terminal has ended
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*arguments: str, **options: object) -> Terminal:
        started.append(Terminal([*LAUNCHER, *arguments], tmp_path, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


def python(script: str) -> list[str]:
    return [sys.executable, "-S", "-c", script]


def test_each_rank_has_a_progress_bar_of_its_own(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    job = terminal("-np", "3", *python(BAR), NO_COLOR="1")
    bars = [
        "[0]<stderr>:########## 100% of rank 0",
        "[1]<stderr>:100% again",
        "[2]<stderr>:########## 100% of rank 2",
    ]
    before = "[1]<stderr>:########## 100% of rank 1"
    # The line that rank 1 has ended stands above the bars.
    job.read_until(
        lambda shown: shown == ["[1]<stderr>:########## 100% of rank 1a line between", *bars]
    )
    (tmp_path / "go").touch()
    shown = job.read_to_end()
    assert shown[0].startswith(before)
    assert sorted(shown[1:]) == [f"[{rank}]<stderr>:end of rank {rank}" for rank in range(3)]
    assert job.process.wait(timeout=30) == 0


def test_bars_fit_the_terminal(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    # 3 bars of 80 columns, on a terminal of 30 columns and 3 lines.
    job = terminal(
        "-np", "3", *python(BAR.replace("percent // 10", "80")), columns=30, lines=3, NO_COLOR="1"
    )
    rows = [f"[0]<stderr>:{'#' * 17}", "[1]<stderr>:100% again"]
    job.read_until(lambda shown: shown == rows)  # the cursor takes the last line
    (tmp_path / "go").touch()
    shown = job.read_to_end()
    assert len(shown) == 2
    assert all(line == f"[{line[1]}]<stderr>:end of rank {line[1]}" for line in shown)
    assert job.process.wait(timeout=30) == 0


def test_tags_are_coloured_by_rank(terminal: Callable[..., Terminal]) -> None:
    job = terminal("-np", "2", *python("print('x')"))
    shown = job.read_to_end()
    assert sorted(shown) == ["[0]<stdout>:x", "[1]<stdout>:x"]
    colours = {line[1]: job.colour(row, 0) for row, line in enumerate(shown)}
    assert colours["0"] != colours["1"]
    assert "default" not in colours.values()
    # What the rank has printed is not coloured.
    assert {job.colour(row, len("[0]<stdout>:")) for row in range(2)} == {"default"}


@pytest.mark.parametrize(
    ("options", "environment"),
    [((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"}), (("--no-tag",), {})],
)
def test_a_terminal_without_colours(
    terminal: Callable[..., Terminal], options: tuple[str, ...], environment: dict[str, str]
) -> None:
    job = terminal("-np", "1", *options, *python("print('x')"), **environment)
    assert job.read_to_end() == ["x" if options else "[0]<stdout>:x"]
    assert b"\x1b" not in job.raw


def test_a_dumb_terminal_shows_the_last_state_of_a_bar(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    job = terminal("-np", "1", *python(BAR), TERM="dumb")
    assert job.read_to_end() == ["[0]<stderr>:end of rank 0"]
    assert b"%" not in job.raw


def test_each_stream_is_treated_as_what_it_is(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    job = terminal("-np", "1", *python(BAR + "print('x')"), split=True)
    assert job.process.stderr
    assert job.process.stderr.read() == b"[0]<stderr>:end of rank 0\n"
    assert job.read_to_end() == ["[0]<stdout>:x"]
    assert job.colour(0, 0) != "default"


def test_messages_of_the_launcher_do_not_break_bars(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    failing = """
import os, pathlib, sys, time
print("\\r50%", end="", file=sys.stderr)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
if os.environ["PERSEUS_RANK"] == "1":
    sys.exit(3)
time.sleep(100)
"""
    job = terminal("-np", "2", *python(failing), columns=100)
    job.read_until(lambda shown: shown == ["[0]<stderr>:50%", "[1]<stderr>:50%"])
    (tmp_path / "go").touch()
    assert job.read_to_end() == [
        "[1]<stderr>:50%",
        "perseusrun: rank 1 on host localhost exited with code 3; ending the other 1",
        "[0]<stderr>:50%",
    ]
    assert job.process.wait(timeout=30) == 3


@pytest.mark.parametrize(
    ("environment", "on_terminal", "elsewhere"),
    [
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "3", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": "0"}, False, False),
        ({"TERM": "xterm", "FORCE_COLOR": ""}, True, False),
    ],
)
def test_when_tags_are_coloured(
    environment: dict[str, str], on_terminal: bool, elsewhere: bool
) -> None:
    assert wants_colours(environment, is_terminal=True) == on_terminal
    assert wants_colours(environment, is_terminal=False) == elsewhere


@pytest.mark.parametrize(
    ("text", "fitted"),
    [
        ("abcdefgh", "abcde"),
        ("\u4e2d\u6587\u5b57", "\u4e2d\u6587"),  # each takes two columns
        ("e\u0301" * 6, "e\u0301" * 5),  # an accent takes none
        ("\x1b[31mabcdefgh\x1b[0m", "\x1b[31mabcde\x1b[0m\x1b[m"),
        ("\x1b[A\x1b[2Kab\bc", "abc"),
        ("\x1b]0;title\x07ab\tc", "ab c"),
    ],
)
def test_a_row_is_cut_to_the_width_and_moves_no_cursor(text: str, fitted: str) -> None:
    assert fit(text.encode(), 5).decode() == fitted


def test_a_line_cannot_move_the_cursor_nor_leave_its_colour() -> None:
    written: list[bytes] = []
    screen = Screen(written.append, lambda: (80, 24))
    screen.write_line(b"\x1b[A\x1b[31mred \xff\r\n")
    assert written == [b"\x1b[31mred \xff\x1b[m\r\n"]


def test_a_terminal_that_changes_its_size_is_drawn_anew() -> None:
    size = (80, 24)
    emulated = pyte.Screen(80, 24)
    stream = pyte.ByteStream(emulated)
    screen = Screen(lambda data: stream.feed(data.replace(b"\n", b"\r\n")), lambda: size)
    for rank in range(3):
        screen.show_unfinished((rank, "stderr"), b"x" * 30)
    size = (20, 3)
    screen.show_unfinished((0, "stderr"), b"y" * 30)
    assert [line.rstrip() for line in emulated.display[:3]] == ["y" * 19, "x" * 19, ""]
    screen.show_unfinished((2, "stderr"), b"no room for it")
    screen.hide_unfinished((0, "stderr"))
    assert [line.rstrip() for line in emulated.display[:3]] == ["x" * 19, "no room for it", ""]
