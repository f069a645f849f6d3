"""Drains a host of an elastic job that another process launches: `perseusrun --drain HOST`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perseus.elastic.dead_jobs import remove_remains
from perseus.elastic.drain_socket import LONGEST, folders, path_in, sockets_in
from perseus.run.own_file import open_folder

__all__ = ["DrainError", "drain_host"]

# A launcher answers at once, unless it is stopped.
_SECONDS_TO_ANSWER = 10.0


class DrainError(Exception):
    """The host cannot be drained. The text is one line, for the user."""


@dataclass(frozen=True)
class _Job:
    process: int  # the launcher's
    path: str
    command: str


def drain_host(host: str, job: int | None = None) -> str:
    """Has the workers of a host finish their step and leave their job; returns what was done.

    Args:
      job: the process id of the job's launcher; None for the only job of this user here.

    Raises DrainError if there is no such job or host, or the launcher does not answer in time.
    """
    with contextlib.ExitStack() as stack:
        jobs = list(_jobs(stack, job))
        if not jobs:
            which = "elastic job" if job is None else f"elastic job {job}"
            raise DrainError(f"no {which} of this user runs on this machine")
        if len(jobs) > 1:
            each = "; ".join(f"{found.process}: {found.command}" for found in jobs)
            raise DrainError(f"{len(jobs)} elastic jobs run here; say which, with --job: {each}")
        process = jobs[0].process
        try:
            answer = _ask(jobs[0].path, {"says": "drain", "host": host})
        except OSError:
            raise DrainError(f"job {process} has just ended") from None
    if answer is None:
        raise DrainError(f"job {process} does not answer")
    if "error" in answer:
        raise DrainError(f"job {process}: {answer['error']}")
    return f"job {process}: host {host} is drained; {answer.get('done', '')}"


def _jobs(stack: contextlib.ExitStack, job: int | None) -> Iterator[_Job]:
    """Returns the jobs whose launchers listen. Their paths are good until the stack is closed.

    Sockets that killed launchers have left are removed.
    """
    remove_remains()
    for path in folders():
        try:
            folder = open_folder(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DrainError(str(error.strerror or error)) from None
        stack.callback(os.close, folder)
        for process, name in sockets_in(folder):
            if job not in (None, process):
                continue
            try:
                answer = _ask(path_in(folder, name), {"says": "describe"})
            except ConnectionRefusedError:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
            except OSError:  # it has just ended
                continue
            else:
                command = str(answer.get("command")) if answer else "it does not answer"
                yield _Job(process, path_in(folder, name), command)


def _ask(path: str, message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a launcher's answer; None if there is none in time. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.settimeout(_SECONDS_TO_ANSWER)
        try:
            caller.connect(path)
            caller.send(json.dumps(message).encode())
            said = caller.recv(LONGEST)
            answer = json.loads(said) if said else None
        except (TimeoutError, BlockingIOError, ValueError):  # the second: too many call
            return None
    return answer if isinstance(answer, dict) else None
