"""The output of the ranks, by whole lines with tags of rank and stream; also kept in files."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Literal, TextIO

Stream = Literal["stdout", "stderr"]
Sink = Callable[[bytes], None]

# Progress bars end their lines with a carriage return.
_LINE_END = re.compile(rb"\r\n|\n|\r")
# Longer lines are cut, so that memory stays bounded.
_LONGEST = 1 << 20


class Output:
    """Writes the output of the ranks. Not thread-safe."""

    def __init__(
        self,
        size: int,
        *,
        sinks: Mapping[Stream, Sink] | None = None,
        timestamps: bool = False,
        folder: Path | None = None,
    ):
        """Writes to our own stdout and stderr, or to `sinks`; also into `folder`, if given."""
        self._sinks = sinks or {"stdout": _sink(sys.stdout), "stderr": _sink(sys.stderr)}
        self._timestamps = timestamps
        self._partial: dict[tuple[int, Stream], bytes] = {}
        self._folder = folder
        self._digits = len(str(size - 1))
        self._files: dict[tuple[int, Stream], BinaryIO] = {}
        self._last_lines: dict[int, bytes] = {}

    def write(self, rank: int, stream: Stream, data: bytes) -> None:
        if self._folder:
            self._keep(rank, stream, data)
        data = self._partial.pop((rank, stream), b"") + data
        begin = 0
        for end in _LINE_END.finditer(data):
            # Until the next byte is here, "\r" may be the first half of "\r\n".
            if end.end() == len(data) and data.endswith(b"\r"):
                break
            self._emit(rank, stream, data[begin : end.end()])
            begin = end.end()
        rest = data[begin:]
        if len(rest) > _LONGEST:
            self._emit(rank, stream, rest + b"\n")
        elif rest:
            self._partial[rank, stream] = rest

    def finish(self, rank: int) -> None:
        """Writes what a rank has not ended with a newline. The rank writes nothing after that."""
        for stream in self._sinks:
            rest = self._partial.pop((rank, stream), b"")
            if rest:
                self._emit(rank, stream, rest if rest.endswith(b"\r") else rest + b"\n")
            file = self._files.pop((rank, stream), None)
            if file:
                file.close()

    def last_lines(self) -> list[bytes]:
        """Returns the last line that each rank wrote to stderr."""
        return list(self._last_lines.values())

    def _emit(self, rank: int, stream: Stream, line: bytes) -> None:
        if stream == "stderr":
            self._last_lines[rank] = line.strip()
        tag = f"[{rank}]<{stream}>:"
        if self._timestamps:
            tag = time.strftime("%Y-%m-%d %H:%M:%S") + tag
        self._sinks[stream](tag.encode() + line)

    def _keep(self, rank: int, stream: Stream, data: bytes) -> None:
        """Writes to the rank's file. If that fails, as on a full disk, the job goes on without."""
        try:
            self._file(rank, stream).write(data)
        except OSError as error:
            print(
                f"perseusrun: the output in {self._folder} ends here: {error.strerror}",
                file=sys.stderr,
                flush=True,
            )
            self._folder = None

    def _file(self, rank: int, stream: Stream) -> BinaryIO:
        file = self._files.get((rank, stream))
        if file is None:
            assert self._folder
            path = self._folder / f"rank.{rank:0{self._digits}}" / stream
            path.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[rank, stream] = path.open("wb", buffering=0)
        return file


def _sink(stream: TextIO) -> Sink:
    """Returns a function that writes to one of our own streams.

    The function raises BrokenPipeError if the stream's reader has gone. If it cannot write for
    another reason, such as a full disk, the job goes on without that stream.
    """

    def write(data: bytes) -> None:
        try:
            # The stdout of a notebook takes text only.
            if hasattr(stream, "buffer"):
                stream.buffer.write(data)
            else:
                stream.write(data.decode(errors="replace"))
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard(stream)
            print(
                f"perseusrun: the ranks' output can no longer be shown: {error.strerror}",
                file=sys.stderr,
                flush=True,
            )

    return write


def discard(stream: TextIO) -> None:
    """Has what is written to a stream from now on go nowhere, and what it still holds."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
