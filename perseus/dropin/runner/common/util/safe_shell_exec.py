"""Runs a command of the shell, shows its output, and ends it when told or when we end."""

from __future__ import annotations

import codecs
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import IO, Any

from perseus.dropin.runner.util.threads import in_thread, on_event
from perseus.run import watched_shell

__all__ = ["GRACEFUL_TERMINATION_TIME_S", "execute"]

#: Seconds from SIGTERM to SIGKILL.
GRACEFUL_TERMINATION_TIME_S = watched_shell.GRACE_SECONDS

_READ_BYTES = 65536


def execute(
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    index: int | None = None,
    events: Iterable[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Runs a command to its end; returns its exit status, which is 128 and more for a signal.

    Args:
      env: its whole environment; this process's by default.
      stdout, stderr: text streams for its output; sys.stdout and sys.stderr by default.
      index: if given, lines begin with [index]<stdout>: or [index]<stderr>:.
      events: end the command as soon as one is set: SIGTERM, and SIGKILL five seconds later, to it
        and all that it has started.
      prefix_output_with_timestamp: with `index`, lines begin with the time.
    """
    # -E and -S: the environment is the command's, and must not change the Python that watches it.
    watcher = [sys.executable, "-E", "-S", watched_shell.__file__, command]
    process = subprocess.Popen(
        watcher, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    readers = [
        in_thread(_forward, (source, sink, None if index is None else (index, name), timed))
        for source, sink, name, timed in (
            (process.stdout, stdout or sys.stdout, "stdout", prefix_output_with_timestamp),
            (process.stderr, stderr or sys.stderr, "stderr", prefix_output_with_timestamp),
        )
    ]
    over = threading.Event()
    for event in events or ():
        on_event(event, process.terminate, stop=over, check_stop_interval_s=0.1)
    try:
        process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        over.set()
    for reader in readers:
        reader.join()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _forward(source: IO[bytes], sink: Any, tag: tuple[int, str] | None, is_timed: bool) -> None:
    """Copies text, each line at once, to a text stream until the source ends."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    with source:
        while data := os.read(source.fileno(), _READ_BYTES):
            *lines, rest = re.split(r"(?<=[\r\n])", rest + decoder.decode(data))
            for line in lines:
                _write(sink, line, tag, is_timed)
    if rest := rest + decoder.decode(b"", final=True):
        _write(sink, rest, tag, is_timed)


def _write(sink: Any, line: str, tag: tuple[int, str] | None, is_timed: bool) -> None:
    if tag is not None:
        moment = time.asctime() if is_timed else ""
        line = f"{moment}[{tag[0]}]<{tag[1]}>:{line}"
    sink.write(line)
    sink.flush()
