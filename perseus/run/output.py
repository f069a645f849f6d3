"""The output of the ranks, by whole lines with tags of rank and stream; also kept in files.

Of a line that a rank has written over with carriage returns, as progress bars do, the last state
counts. On a terminal each state is shown while it lasts.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from perseus.run.bounded_writer import BoundedWriter, Writers
from perseus.run.own_file import open_folder
from perseus.run.own_streams import OwnStream, own_streams
from perseus.run.rank_file import RankFile, path_in_folder
from perseus.run.screen import Log, Stream, Write, coloured

# Longer lines are cut, so that memory stays bounded.
_LONGEST = 1 << 20


class Output:
    """Writes the output of the ranks, and what the launcher has to say. Not thread-safe.

    No call waits: `writers` write later what the calls are given.
    """

    def __init__(
        self,
        size: int,
        *,
        sinks: Mapping[Stream, Write] | None = None,
        timestamps: bool = False,
        folder: Path | None = None,
        appends: bool = False,
        only_rank: int | None = None,
        tags: bool = True,
    ):
        """Writes to our own stdout and stderr, or to `sinks`; also into `folder`, if given.

        Args:
          appends: adds to the files that are in the folder.
          only_rank: shows the output of this rank alone. The folder gets that of all.
          tags: whether lines begin with the rank and the stream.
        """
        self.writers = Writers()
        if sinks is None:
            self._streams = own_streams(os.environ, self.writers)
        else:
            self._streams = {
                stream: OwnStream(Log(write), False, None) for stream, write in sinks.items()
            }
        self.reader_is_gone = False  # whether nobody reads our stdout or stderr any more
        self._timestamps = timestamps
        self._partial: dict[tuple[int, Stream], bytearray] = {}
        self._folder = folder
        self._appends = appends
        self._file_writer: BoundedWriter | None = None
        if folder is not None:
            self._file_writer = self.writers.add(f"the output in {folder}")
        self._digits = len(str(size - 1))
        self._only_rank = only_rank
        self._tags = tags
        self._files: dict[tuple[int, Stream], RankFile] = {}
        self._last_lines: dict[int, bytes] = {}

    @property
    def files(self) -> tuple[str, int] | None:
        """Returns the absolute path of the folder, if there is one, and the digits of a rank."""
        return (os.path.abspath(self._folder), self._digits) if self._folder is not None else None

    def write(self, rank: int, stream: Stream, data: bytes) -> None:
        if self._file_writer:
            self._store(self._file_writer, rank, stream, data)
        rest = self._partial.setdefault((rank, stream), bytearray())
        rest += data
        if b"\n" in data:
            *lines, last = bytes(rest).split(b"\n")
            rest[:] = last
            self._emit_all(rank, stream, lines)
        if len(rest) > _LONGEST:
            self._emit(rank, stream, bytes(rest))
            rest.clear()
        elif b"\r" in data.rpartition(b"\n")[2] or rest.startswith(b"\r"):
            rest[:] = self._reduced(rank, stream, bytes(rest))

    def finish(self, rank: int) -> None:
        """Writes what a rank has not ended with a newline. The rank writes nothing after that."""
        for stream in self._streams:
            rest = bytes(self._partial.pop((rank, stream), b""))
            if last_state(rest):
                self._emit(rank, stream, rest.rstrip(b"\r"))
            elif rest and self._shows(rank):
                self._streams[stream].sink.hide_unfinished((rank, stream))

    def take_errors(self) -> None:
        """Says which of the places can no longer be written, as on a full disk.

        The job goes on without them, but ends if nobody reads our stdout or stderr any more.
        """
        for writer in self.writers.new_errors():
            assert writer.error
            if writer is self._file_writer:
                self.say(f"perseusrun: {writer.name} ends here: {writer.error.strerror}")
            elif isinstance(writer.error, BrokenPipeError):
                self.reader_is_gone = True
            else:
                self.say(
                    f"perseusrun: the ranks' output can no longer be shown: {writer.error.strerror}"
                )

    def is_stuck(self, stream: Stream) -> bool:
        """Returns whether the reader of one of our streams has not read all that it was to."""
        writer = self._streams[stream].writer
        return writer is not None and writer.waiting > 0

    def close(self) -> None:
        """Drops what is not written yet."""
        self.writers.close()
        for file in self._files.values():
            file.close()

    def say(self, message: str) -> None:
        """Writes a line of the launcher's own to stderr."""
        self.forward(message.encode(errors="replace"))

    def forward(self, line: bytes) -> None:
        """Writes a line to stderr as it is."""
        stream = self._streams["stderr"]
        if stream.writer is None or not stream.writer.refuses(len(line), is_own=True):
            stream.sink.write_line(line + b"\n")

    def last_lines(self) -> list[bytes]:
        """Returns the last line that each rank wrote to stderr."""
        return list(self._last_lines.values())

    def hidden_last_line(self, rank: int) -> str:
        """Returns the last line on stderr of a rank whose output is not shown, else ""."""
        return "" if self._shows(rank) else self._last_lines.get(rank, b"").decode(errors="replace")

    def _shows(self, rank: int) -> bool:
        return self._only_rank in (None, rank)

    def _emit_all(self, rank: int, stream: Stream, lines: list[bytes]) -> None:
        """Writes lines, given without their newlines; at once if nothing moves the cursor."""
        writer = self._streams[stream].writer
        text = b"\n".join(lines)
        if writer is None or b"\r" in text or b"\x1b" in text:
            for line in lines:
                self._emit(rank, stream, line)
            return
        if stream == "stderr":
            self._last_lines[rank] = lines[-1].strip()
        if not self._shows(rank):
            return
        prefix = self._prefix(rank, stream)
        whole = prefix + text.replace(b"\n", b"\n" + prefix) + b"\n"
        if not writer.refuses(len(whole)):
            self._streams[stream].sink.write_line(whole)

    def _emit(self, rank: int, stream: Stream, line: bytes) -> None:
        """Writes a line, given without its newline."""
        shown = last_state(line)
        if stream == "stderr":
            self._last_lines[rank] = shown.strip()
        if not self._shows(rank):
            return
        sink, writer = self._streams[stream].sink, self._streams[stream].writer
        if b"\r" in line:
            sink.hide_unfinished((rank, stream))
        end = b"\r\n" if line.endswith(b"\r") else b"\n"
        whole = self._prefix(rank, stream) + shown + end
        if writer is None or not writer.refuses(len(whole)):
            sink.write_line(whole)

    def _reduced(self, rank: int, stream: Stream, rest: bytes) -> bytes:
        """Returns the state of an unfinished line that has been written over, and shows it."""
        state = last_state(rest)
        if self._shows(rank):
            sink = self._streams[stream].sink
            if state:
                sink.show_unfinished((rank, stream), self._prefix(rank, stream) + state)
            else:
                sink.hide_unfinished((rank, stream))
        # A carriage return at the end may be the first half of "\r\n". That at the beginning says
        # that this is a line that has been written over.
        return b"\r" + state + (b"\r" if rest.endswith(b"\r") else b"")

    def _prefix(self, rank: int, stream: Stream) -> bytes:
        tag = f"[{rank}]<{stream}>:" if self._tags else ""
        if self._timestamps:
            tag = time.strftime("%Y-%m-%d %H:%M:%S ") + tag
        text = tag.encode()
        return coloured(text, rank) if self._tags and self._streams[stream].is_coloured else text

    def _store(self, writer: BoundedWriter, rank: int, stream: Stream, data: bytes) -> None:
        if writer.refuses(len(data)):
            return
        file = self._files.get((rank, stream))
        if file is None:
            assert self._folder
            path = path_in_folder(self._folder, rank, self._digits, stream)
            file = self._files[rank, stream] = RankFile(path, self._appends)
        writer.write(file.put, data)


def remove_older(folder: Path) -> None:
    """Removes what an earlier job has left in the folder, which may have had more ranks."""
    try:
        fd = open_folder(folder)
    except OSError:
        return  # somebody has put another one there; whoever writes into it says so
    try:
        for name in os.listdir(fd):
            if name.startswith("rank.") and name[len("rank.") :].isdigit():
                with contextlib.suppress(OSError):  # a link, or something else is in there
                    _remove_streams(fd, name)
                    os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)


def _remove_streams(folder: int, place: str) -> None:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        for name in ("stdout", "stderr"):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def last_state(line: bytes) -> bytes:
    """Returns what is left to see of a line: the text after the last carriage return inside it.

    A line that was written over with blanks has been cleared.
    """
    line = line.rstrip(b"\r")
    _, written_over, state = line.rpartition(b"\r")
    return b"" if written_over and not state.strip() else state
