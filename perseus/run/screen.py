"""Where lines go: to a terminal, at whose bottom unfinished lines stay and change, or elsewhere."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

Stream = Literal["stdout", "stderr"]
Write = Callable[[bytes], None]
Key = tuple[int, Stream]  # whose unfinished line it is: a rank's, on one of its streams

# An escape sequence (of cursor or style, of title or link, another), or one character.
_PIECE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^\[\]]|.", re.DOTALL
)
_IS_STYLE = re.compile(r"\x1b\[[0-9;:]*m").fullmatch
_PLAIN = b"\x1b[m"
# Colours that can be read on dark and on light grounds.
_COLOURS = (36, 35, 32, 34, 33, 31, 96, 95, 92, 94, 93, 91)


class Sink(Protocol):
    """Takes whole lines, and the present state of lines that are not finished. Not thread-safe."""

    def write_line(self, line: bytes) -> None:
        """Writes a line, which ends with a newline."""

    def show_unfinished(self, key: Key, text: bytes) -> None:
        """Shows this text in place of what was shown for the key."""

    def hide_unfinished(self, key: Key) -> None:
        """Shows nothing more for the key."""


class Log:
    """A file, a pipe, or a terminal without a cursor that moves: it gets whole lines only."""

    def __init__(self, write: Write):
        self._write = write

    def write_line(self, line: bytes) -> None:
        self._write(line)

    def show_unfinished(self, key: Key, text: bytes) -> None:
        pass

    def hide_unfinished(self, key: Key) -> None:
        pass


class Screen:
    """A terminal. Unfinished lines, such as progress bars, take a row each below all other lines.

    Args:
      write: writes to the terminal.
      size: returns its columns and lines.
    """

    def __init__(self, write: Write, size: Callable[[], tuple[int, int]]):
        self._write = write
        self._measure = size
        self._rows: dict[Key, bytes] = {}  # in the order in which they are shown
        self._drawn = 0  # how many of them are on the terminal, above the cursor
        self._size = (0, 0)

    def write_line(self, line: bytes) -> None:
        # If a rank moved the cursor, it would write over what others have written.
        if b"\x1b" in line:
            text = line.decode(errors="surrogateescape")
            kept = [piece for piece in _PIECE.findall(text) if piece[0] != "\x1b" or _style(piece)]
            line = "".join(kept).encode(errors="surrogateescape")
            body = line.rstrip(b"\r\n")
            line = body + _PLAIN + line[len(body) :]
        self._write(self._erase() + line + self._draw())

    def show_unfinished(self, key: Key, text: bytes) -> None:
        known = key in self._rows
        if known and self._rows[key] == text:
            return
        self._rows[key] = text
        if not known:
            self._rows = dict(sorted(self._rows.items()))
        if not known or self._measure() != self._size:
            self._write(self._erase() + self._draw())
            return
        up = self._drawn - list(self._rows).index(key)
        if up > 0:
            row = fit(text, self._size[0] - 1)
            self._write(b"\x1b[%dA\r\x1b[2K%s\x1b[%dB\r" % (up, row, up))

    def hide_unfinished(self, key: Key) -> None:
        if self._rows.pop(key, None) is not None:
            self._write(self._erase() + self._draw())

    def _erase(self) -> bytes:
        """Returns what removes the rows from the terminal."""
        drawn, self._drawn = self._drawn, 0
        return b"\x1b[%dA\r\x1b[J" % drawn if drawn else b""

    def _draw(self) -> bytes:
        """Returns what draws the rows again, as many as there is room for."""
        if not self._rows:
            return b""
        self._size = columns, lines = self._measure()
        rows = list(self._rows.values())[: max(1, lines - 1)]
        self._drawn = len(rows)
        return b"".join(fit(row, columns - 1) + b"\n" for row in rows)


def fit(text: bytes, columns: int) -> bytes:
    """Cuts a text to a width, without anything in it that moves the cursor."""
    kept, width, styled = [], 0, False
    for piece in _PIECE.findall(text.decode(errors="ignore")):
        if piece[0] == "\x1b":
            if _style(piece):
                kept.append(piece)
                styled = True
            continue
        piece = " " if piece == "\t" else piece
        width += _width(piece)
        if width <= columns and unicodedata.category(piece) != "Cc":
            kept.append(piece)
    return "".join(kept).encode() + (_PLAIN if styled else b"")


def _style(escape_sequence: str) -> bool:
    """Returns whether it sets a colour or the like, and moves nothing."""
    return _IS_STYLE(escape_sequence) is not None


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cc", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def coloured(text: bytes, rank: int) -> bytes:
    """Returns the text in the colour of the rank."""
    return b"\x1b[%dm%s\x1b[m" % (_COLOURS[rank % len(_COLOURS)], text)


def wants_colours(environment: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Follows NO_COLOR, which wins, and FORCE_COLOR, of which 0 stands for no colours."""
    if environment.get("NO_COLOR"):
        return False
    if force := environment.get("FORCE_COLOR"):
        return force != "0"
    return is_terminal and can_move_the_cursor(environment)


def can_move_the_cursor(environment: Mapping[str, str]) -> bool:
    return environment.get("TERM", "dumb") != "dumb"
