"""The folder of an elastic job that may outlive its launcher, on the launcher's machine.

    lock        is locked by the launcher, or by whoever takes the job over or ends it; holds the
                number of that process
    state       what another launcher has to know (perseus.elastic.job_record)
    N.socket    where agent N listens
    N.report    what agent N has left that ended while there was no launcher

On other machines, agents have a folder NUMBER.X.agents with a lock and their sockets. The job's own
is called NUMBER.X.job, where NUMBER is the process id of the job's first launcher, which names
the job. Beside it is NUMBER.X.socket, where the launcher listens (perseus.elastic.drain_socket).
Both lie in a folder that only the user may enter, and end with the job. If it fails while it has no
launcher, NUMBER.X.ended is left there for a while, which holds what agents have reported. Agents
and the launcher import this; it needs only the standard library.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

LOCK, STATE = "lock", "state"
FOLDER, AGENTS, SOCKET, REPORT, ENDED = ".job", ".agents", ".socket", ".report", ".ended"
#: Bytes of a message and of an answer.
LONGEST = 16384
_MOST_CALLERS = 8
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_LOCK = 1.0
_SECONDS_TO_CLOSE = 1.0


def path_of(folder: str) -> str:
    """Returns the path of a folder; of agents' on another machine, only the name is told."""
    return os.path.join(f"/tmp/perseus-{os.geteuid()}", folder)


def make_agents_folder(path: str) -> None:
    """Makes a folder of agents on another machine, unless it is there. Raises OSError."""
    place, name = os.path.split(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
    parent = open_job_folder(place)
    try:
        os.fchmod(parent, 0o700)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        folder = open_job_folder(path)
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(LOCK, flags, 0o600, dir_fd=folder))
        os.close(folder)
    finally:
        os.close(parent)


def open_job_folder(path: str) -> int:
    """Opens a job's folder. Raises OSError if it is not there, or another user's."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(folder).st_uid not in (os.geteuid(), 0):
        os.close(folder)
        raise PermissionError(errno.EPERM, "it belongs to another user", path)
    return folder


def path_in(folder: int, name: str) -> str:
    """Returns a path to a file in an open folder that is short enough for a socket's address."""
    return f"/proc/self/fd/{folder}/{name}"


def take_lock(folder: int, seconds: float = 0.0) -> int | None:
    """Returns the descriptor that holds the lock; None if another process has it all the time.

    Raises OSError if the job has no such file, since it has ended.
    """
    lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(lock)
                return None
            time.sleep(0.02)


def write_whole(folder: int, name: str, text: str) -> None:
    """Puts a file into the folder, or another one in its place, so that nobody reads half of it."""
    hidden = f".{name}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(hidden, flags, 0o600, dir_fd=folder), "w") as file:
            file.write(text)
    except OSError:  # the disk is full: leave room for the next attempt
        with contextlib.suppress(OSError):
            os.unlink(hidden, dir_fd=folder)
        raise
    os.rename(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)


def read_json(folder: int, name: str) -> dict[str, Any] | None:
    """Returns what a file in the folder holds; None if it is not there, or no such thing."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(fd) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def listen(folder: int, name: str) -> socket.socket:
    """Listens at a name in the folder, which appears once that has begun."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        hidden = f".{name}"
        listener.bind(path_in(folder, hidden))
        listener.listen(_MOST_CALLERS)
        os.rename(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        listener.close()
        raise
    return listener


def is_own_user(caller: socket.socket) -> bool:
    """Returns whether this user, or root, is at the other end of a Unix socket."""
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return user in (os.geteuid(), 0)


def call(
    folder: int, name: str, message: Mapping[str, Any], fds: Sequence[int] = ()
) -> tuple[dict[str, Any], socket.socket]:
    """Says something to an agent; returns its answer, and the connection.

    Raises OSError: ConnectionRefusedError or FileNotFoundError if the agent is gone, TimeoutError
    if it does not answer.
    """
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        caller.settimeout(_SECONDS_TO_ANSWER)
        caller.connect(path_in(folder, name))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        caller.sendmsg([json.dumps(message).encode()], rights)
        said = caller.recv(LONGEST)
        answer = json.loads(said) if said else {"error": "its agent has hung up"}
    except BlockingIOError:  # too many call at once
        caller.close()
        raise TimeoutError(errno.ETIMEDOUT, "its agent is busy") from None
    except BaseException:
        caller.close()
        raise
    return answer, caller


def living_agents(folder: int) -> list[str]:
    """Returns the names of the sockets at which agents listen; removes those of dead ones."""
    return [
        name
        for name in sorted(os.listdir(folder))
        if name.endswith(SOCKET) and not name.startswith(".") and remove_dead_socket(folder, name)
    ]


def may_be_taken_over(folder: int) -> bool:
    """Returns whether a job goes on without its launcher, or agents on other machines may do so.

    Those are asked only by who takes the job over, or ends it.
    """
    return bool(living_agents(folder) or (read_json(folder, STATE) or {}).get("has_others"))


def remove_dead_socket(folder: int, name: str) -> bool:
    """Removes a socket in an open folder at which nobody listens any more. Never waits.

    Returns whether somebody does.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.setblocking(False)
        try:
            caller.connect(path_in(folder, name))
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            return False
        except FileNotFoundError:
            return False
        except OSError:  # it listens, and is busy
            pass
    return True


def remove_socket_of_dead(path: str) -> None:
    """Removes the socket of a launcher that has been killed.

    A process that ends closes what it has open one by one, so its socket may still listen for a
    moment after its agents have noticed. Waits for up to a second.
    """
    place, name = os.path.split(path)
    with contextlib.suppress(OSError):
        folder = open_job_folder(place)
        try:
            end = time.monotonic() + _SECONDS_TO_CLOSE
            while remove_dead_socket(folder, name) and time.monotonic() < end:
                time.sleep(0.01)
        finally:
            os.close(folder)


def remove_job_folder(folder: int, path: str) -> None:
    """Removes the folder and what is in it, and the socket of a launcher that was killed.

    The caller holds the folder's lock.
    """
    with contextlib.suppress(OSError):
        os.unlink(path.removesuffix(FOLDER) + SOCKET)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            os.unlink(name, dir_fd=folder)
        os.rmdir(path)


def remove_ended_job(folder: int, path: str) -> None:
    """Removes the folder of a job that has ended without a launcher, and keeps why it has failed.

    That is nothing to keep if the user has ended it. The caller holds the folder's lock.
    """
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if name.endswith(REPORT))
        reports = [report for name in names if (report := read_json(folder, name))]
        is_asked = any(report.get("was_told_to_end") for report in reports)
        ranks = [rank for report in reports for rank in report.get("ranks", ())]
        is_agents_alone = not path.endswith(FOLDER)  # on another machine, where nobody asks
        if not is_asked and not is_agents_alone and any(rank["status"] for rank in ranks):
            place, name = os.path.split(path.removesuffix(FOLDER) + ENDED)
            parent = open_job_folder(place)
            try:
                write_whole(parent, name, json.dumps({"ended": time.time(), "reports": reports}))
            finally:
                os.close(parent)
    remove_job_folder(folder, path)


def leave_job_folder(
    folder: int, path: str, name: str, report: Mapping[str, Any], *, has_finished: bool
) -> None:
    """Takes an agent that ends without a launcher out of the folder.

    The last one removes the folder, unless somebody is about to take over the job, or might for the
    sake of agents on other machines. The others leave a report of what has become of their ranks.

    Args:
      has_finished: training has.
    """
    with contextlib.suppress(OSError):
        write_whole(folder, name + REPORT, json.dumps(report))
        os.unlink(name + SOCKET, dir_fd=folder)
        if (lock := take_lock(folder, _SECONDS_TO_LOCK)) is None:
            return
        try:
            state = read_json(folder, STATE) or {}
            is_needed = state.get("has_others") and not has_finished
            if not is_needed and not living_agents(folder):
                remove_ended_job(folder, path)
        finally:
            os.close(lock)
