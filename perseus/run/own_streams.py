"""Our own stdout and stderr: what the launcher shows and says goes there."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from perseus.run.bounded_writer import BoundedWriter, Writers
from perseus.run.screen import (
    Log,
    Screen,
    Sink,
    Stream,
    Write,
    can_move_the_cursor,
    wants_colours,
)

#: A pipe that can be written takes so many bytes without making the writer wait.
_PIPE_BYTES = select.PIPE_BUF
_FILE_BYTES = 65536


@dataclass(frozen=True)
class OwnStream:
    sink: Sink
    is_coloured: bool  # whether tags are
    writer: BoundedWriter | None  # None if the stream is no file, as in a notebook


def own_streams(environment: Mapping[str, str], writers: Writers) -> dict[Stream, OwnStream]:
    """Returns this process's stdout and stderr.

    Streams that go to one place share a writer, which keeps their lines in order.
    """
    screens: dict[tuple[int, ...], Screen] = {}  # two streams to one terminal share it
    by_place: dict[tuple[int, ...], BoundedWriter] = {}
    own: dict[Stream, OwnStream] = {}
    streams: dict[Stream, TextIO | None] = {"stdout": sys.stdout, "stderr": sys.stderr}
    for name, stream in streams.items():
        fd = _descriptor(stream)
        is_terminal = fd is not None and os.isatty(fd)
        is_coloured = wants_colours(environment, is_terminal=is_terminal)
        if stream is None or fd is None:
            own[name] = OwnStream(Log(functools.partial(_write_text, stream)), is_coloured, None)
            continue
        place = _place(fd)
        if place not in by_place:
            by_place[place] = writers.add(name, functools.partial(_lose, stream))
        writer = by_place[place]
        sink: Sink = Log(_writing_to(fd, writer))
        if is_terminal and can_move_the_cursor(environment):
            if place not in screens:
                screens[place] = Screen(_writing_to(fd, writer), functools.partial(_size, fd))
            sink = screens[place]
        own[name] = OwnStream(sink, is_coloured, writer)
    return own


def reserve_standard_descriptors() -> None:
    """Opens /dev/null in place of those of the three standard streams that are closed.

    Otherwise the next file or socket would become our stdout.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def tell(message: str) -> None:
    """Says something of the launcher's own before the job or after it, if that can be written."""
    with contextlib.suppress(OSError, AttributeError):
        print(f"perseusrun: {message}", file=sys.stderr, flush=True)


def discard(stream: TextIO) -> None:
    """Has what is written to a stream from now on go nowhere, and what it still holds."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _descriptor(stream: TextIO | None) -> int | None:
    """Returns the descriptor of a stream after flushing it; None if it is not just a file.

    What is written to a notebook's stream goes elsewhere than to the descriptor that it names.
    """
    try:
        fd = stream.buffer.fileno()  # type: ignore[union-attr]
        os.fstat(fd)
    except (AttributeError, OSError, ValueError):
        return None
    with contextlib.suppress(OSError):
        stream.flush()  # type: ignore[union-attr]
    return fd


def _place(fd: int) -> tuple[int, ...]:
    """Returns what two descriptors have in common if they write to the same file or terminal."""
    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        return (status.st_rdev,)
    return (status.st_dev, status.st_ino)


def _writing_to(fd: int, writer: BoundedWriter) -> Write:
    is_file = stat.S_ISREG(os.fstat(fd).st_mode)
    put = functools.partial(_put, fd, _FILE_BYTES if is_file else _PIPE_BYTES)
    return functools.partial(writer.write, put)


def _put(fd: int, most: int, data: memoryview) -> int:
    try:
        return os.write(fd, data[:most])
    except BlockingIOError:  # another program has made the pipe so
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        poll.poll()
        return 0


def _lose(stream: TextIO, error: OSError) -> None:
    """Goes on without a stream, as on a full disk or when nobody reads a pipe any more."""
    with contextlib.suppress(OSError, ValueError):
        discard(stream)


def _write_text(stream: TextIO | None, data: bytes) -> None:
    """Writes to a stream without a descriptor, such as a notebook's."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        stream.write(data.decode(errors="replace"))
        stream.flush()


def _size(fd: int) -> tuple[int, int]:
    columns = lines = 0
    with contextlib.suppress(OSError):  # it may have been closed
        columns, lines = os.get_terminal_size(fd)
    # A terminal that nobody has given a size, such as a serial line, says 0.
    return columns or 80, lines or 24
