"""The output of the ranks, by whole lines with tags of rank and stream; also kept in files.

Of a line that a rank has written over with carriage returns, as progress bars do, the last state
counts. On a terminal each state is shown while it lasts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from perseus.run.screen import Log, Stream, Write, coloured, own_streams

# Longer lines are cut, so that memory stays bounded.
_LONGEST = 1 << 20


class Output:
    """Writes the output of the ranks, and what the launcher has to say. Not thread-safe."""

    def __init__(
        self,
        size: int,
        *,
        sinks: Mapping[Stream, Write] | None = None,
        timestamps: bool = False,
        folder: Path | None = None,
        only_rank: int | None = None,
        tags: bool = True,
    ):
        """Writes to our own stdout and stderr, or to `sinks`; also into `folder`, if given.

        Args:
          only_rank: shows the output of this rank alone. The folder gets that of all.
          tags: whether lines begin with the rank and the stream.
        """
        if sinks is None:
            self._sinks, self._coloured = own_streams(os.environ, self._lose_reader)
        else:
            self._sinks = {stream: Log(write) for stream, write in sinks.items()}
            self._coloured = dict.fromkeys(sinks, False)
        self.reader_is_gone = False  # whether nobody reads our stdout or stderr any more
        self._timestamps = timestamps
        self._partial: dict[tuple[int, Stream], bytes] = {}
        self._folder = folder
        self._digits = len(str(size - 1))
        self._only_rank = only_rank
        self._tags = tags
        self._files: dict[tuple[int, Stream], BinaryIO] = {}
        self._last_lines: dict[int, bytes] = {}

    def write(self, rank: int, stream: Stream, data: bytes) -> None:
        if self._folder:
            self._store(rank, stream, data)
        *lines, rest = (self._partial.pop((rank, stream), b"") + data).split(b"\n")
        for line in lines:
            self._emit(rank, stream, line)
        if len(rest) > _LONGEST:
            self._emit(rank, stream, rest)
        elif rest:
            self._keep(rank, stream, rest)

    def finish(self, rank: int) -> None:
        """Writes what a rank has not ended with a newline. The rank writes nothing after that."""
        for stream in self._sinks:
            rest = self._partial.pop((rank, stream), b"")
            if last_state(rest):
                self._emit(rank, stream, rest.rstrip(b"\r"))
            elif rest and self._shows(rank):
                self._sinks[stream].hide_unfinished((rank, stream))
            file = self._files.pop((rank, stream), None)
            if file:
                file.close()

    def say(self, message: str) -> None:
        """Writes a line of the launcher's own to stderr."""
        self.forward(message.encode(errors="replace"))

    def forward(self, line: bytes) -> None:
        """Writes a line to stderr as it is."""
        self._sinks["stderr"].write_line(line + b"\n")

    def last_lines(self) -> list[bytes]:
        """Returns the last line that each rank wrote to stderr."""
        return list(self._last_lines.values())

    def hidden_last_line(self, rank: int) -> str:
        """Returns the last line on stderr of a rank whose output is not shown, else ""."""
        return "" if self._shows(rank) else self._last_lines.get(rank, b"").decode(errors="replace")

    def _lose_reader(self) -> None:
        self.reader_is_gone = True

    def _shows(self, rank: int) -> bool:
        return self._only_rank in (None, rank)

    def _emit(self, rank: int, stream: Stream, line: bytes) -> None:
        """Writes a line, given without its newline."""
        shown = last_state(line)
        if stream == "stderr":
            self._last_lines[rank] = shown.strip()
        if not self._shows(rank):
            return
        sink = self._sinks[stream]
        if b"\r" in line:
            sink.hide_unfinished((rank, stream))
        end = b"\r\n" if line.endswith(b"\r") else b"\n"
        sink.write_line(self._prefix(rank, stream) + shown + end)

    def _keep(self, rank: int, stream: Stream, rest: bytes) -> None:
        """Keeps a line that is not finished. One that was written over is reduced to its state."""
        if b"\r" in rest:
            state = last_state(rest)
            # A carriage return at the end may be the first half of "\r\n". That at the beginning
            # says that this is a line that has been written over.
            rest = b"\r" + state + (b"\r" if rest.endswith(b"\r") else b"")
            if self._shows(rank):
                sink = self._sinks[stream]
                if state:
                    sink.show_unfinished((rank, stream), self._prefix(rank, stream) + state)
                else:
                    sink.hide_unfinished((rank, stream))
        self._partial[rank, stream] = rest

    def _prefix(self, rank: int, stream: Stream) -> bytes:
        tag = f"[{rank}]<{stream}>:" if self._tags else ""
        if self._timestamps:
            tag = time.strftime("%Y-%m-%d %H:%M:%S ") + tag
        text = tag.encode()
        return coloured(text, rank) if self._tags and self._coloured[stream] else text

    def _store(self, rank: int, stream: Stream, data: bytes) -> None:
        """Writes to the rank's file. If that fails, as on a full disk, the job goes on without."""
        try:
            self._file(rank, stream).write(data)
        except OSError as error:
            self.say(f"perseusrun: the output in {self._folder} ends here: {error.strerror}")
            self._folder = None

    def _file(self, rank: int, stream: Stream) -> BinaryIO:
        file = self._files.get((rank, stream))
        if file is None:
            assert self._folder
            path = self._folder / f"rank.{rank:0{self._digits}}" / stream
            path.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[rank, stream] = path.open("wb", buffering=0)
        return file


def remove_older(folder: Path) -> None:
    """Removes what an earlier job has left in the folder, which may have had more ranks."""
    for file in folder.glob("rank.*/std*"):
        if file.parent.name[len("rank.") :].isdigit() and file.name in ("stdout", "stderr"):
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else is in there
                file.parent.rmdir()


def last_state(line: bytes) -> bytes:
    """Returns what is left to see of a line: the text after the last carriage return inside it.

    A line that was written over with blanks has been cleared.
    """
    line = line.rstrip(b"\r")
    _, written_over, state = line.rpartition(b"\r")
    return b"" if written_over and not state.strip() else state
