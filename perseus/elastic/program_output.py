"""Runs a program for what it prints, and kills it if it takes too long, prints too much, or when
told."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

from perseus.elastic.discovery import DiscoveryError

__all__ = ["output_of"]

_MOST_BYTES = 1 << 20
_READ_BYTES = 65536
_STDERR_BYTES = 4096  # of the end of stderr are kept
_SHOWN_CHARACTERS = 200  # of the last line there
# How often to see whether the program has ended without closing its output, or is to be killed.
_LOOK_SECONDS = 0.05
# A killed program may wait for a file server, and then stays.
_KILLED_SECONDS = 0.5


def output_of(command: Sequence[str], name: str, timeout: float, cancelled: threading.Event) -> str:
    """Runs a program in a session of its own; returns its standard output.

    What the program leaves behind in the background is not waited for, but killed: it is run again
    and again. Only what has begun another process group stays.

    Raises DiscoveryError, which begins with `name`, if the program cannot be started, fails, prints
    what is no UTF-8 or more than 1 MiB, or has not ended after `timeout` seconds, and as soon as
    `cancelled` is set. In the last three cases, the program is killed, too.
    """
    if cancelled.is_set():
        raise DiscoveryError(f"{name} is not run any more")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DiscoveryError(f"{name} cannot be run: {why}") from None
    assert process.stdout and process.stderr
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        printed, complaints = bytearray(), bytearray()
        selector.register(process.stdout, selectors.EVENT_READ, printed)
        selector.register(process.stderr, selectors.EVENT_READ, complaints)
        deadline = time.monotonic() + timeout
        try:
            while _goes_on(process, selector):
                del complaints[:-_STDERR_BYTES]
                if why := _reason_to_kill(len(printed), deadline, timeout, cancelled):
                    raise DiscoveryError(f"{name} {why}")
        finally:  # after Ctrl-C, too, which reaches us only
            _kill_group(process)
    if process.returncode:
        raise DiscoveryError(f"{name} {_ending(process.returncode, complaints)}")
    try:
        return printed.decode()
    except UnicodeDecodeError:
        raise DiscoveryError(f"{name} has printed what is not UTF-8; it must print text") from None


def _goes_on(process: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> bool:
    """Reads what there is, or waits a little for it. Returns False once all is read."""
    # It is not reaped yet, so that its number is that of its process group and no other.
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    has_ended = os.waitid(os.P_PID, process.pid, look) is not None
    if not has_ended and not selector.get_map():
        time.sleep(_LOOK_SECONDS)
        return True
    ready = selector.select(0 if has_ended else _LOOK_SECONDS)
    for key, _ in ready:
        if data := os.read(key.fd, _READ_BYTES):
            key.data.extend(data)
        else:
            selector.unregister(key.fileobj)
    return not has_ended or bool(ready)


def _reason_to_kill(
    size: int, deadline: float, timeout: float, cancelled: threading.Event
) -> str | None:
    if cancelled.is_set():
        return "has been stopped"
    if size > _MOST_BYTES:
        return f"has printed more than {_MOST_BYTES} bytes, and has been killed"
    if time.monotonic() > deadline:
        return f"has not ended in {timeout:g} s, and has been killed"
    return None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what there is of a program that has not been reaped, and reaps it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_SECONDS)


def _ending(status: int, complaints: bytearray) -> str:
    """Returns how a failed program has ended, and the last line that it has written to stderr."""
    lines = complaints.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")[:_SHOWN_CHARACTERS]
    end = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
    return f"{end}{last and ': '}{last}"
