"""Opens files at paths that a user has named, which may lie in folders like /tmp: another user can
put something there first, and must not decide what is overwritten, or believed.

csrc/base/output_file.h has the same rules for the files that the engine writes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

if TYPE_CHECKING or __package__:
    from perseus.run.port_holder import name_of_user
else:  # in an agent, which is run by its path
    from port_holder import name_of_user

_MOST_LINKS = 40
_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotOwnError(PermissionError):
    """Another user has a say in what is at the path."""


def open_to_write(path: Path, *, appends: bool = False) -> BinaryIO:
    """Opens and empties a file, or makes it; with `appends`, what is there stays.

    Raises NotOwnError if it is another user's or has a second name, or if a symbolic link on the
    way to it is another user's (but for root's). Never waits, but writes may.
    """
    fd = _open(path, os.O_WRONLY, creates=True)
    try:
        with contextlib.suppress(
            OSError
        ):  # neither pipes nor devices have an end or can be emptied
            if appends:
                os.lseek(fd, 0, os.SEEK_END)
            else:
                os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
        return os.fdopen(fd, "wb", buffering=0)
    except OSError:
        os.close(fd)
        raise


def open_to_read(path: Path) -> TextIO:
    """Opens a file to read it. Raises NotOwnError if another user has made it, or decides where it
    is.

    Never waits.
    """
    return os.fdopen(_open(path, os.O_RDONLY, creates=False))


def open_folder(path: Path, *, makes: bool = False) -> int:
    """Opens a folder, so that nobody can put another one in its place before it is used.

    Raises NotOwnError if it is another user's, or another user decides where it is.

    Args:
      makes: makes the folder if it is not there, and those above it.
    """
    enter = functools.partial(_enter_or_make, path) if makes else _enter
    place = _walk(path, enter, enter)
    try:
        _check_owner(path, place)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)


def _open(path: Path, access: int, *, creates: bool) -> int:
    def open_last(folder: int, name: str) -> int:
        return _open_here(path, folder, name, access, creates=creates)

    return _walk(path, open_last, _enter)


def _enter(folder: int, name: str) -> int:
    return os.open(name, _FOLDER_FLAGS, dir_fd=folder)


def _enter_or_make(path: Path, folder: int, name: str) -> int:
    try:
        return _enter(folder, name)
    except FileNotFoundError:
        _check_owner(path, folder)
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        return _enter(folder, name)


def _check_owner(path: Path, folder: int) -> None:
    if not _is_trusted(user := os.fstat(folder).st_uid):
        raise _refused(path, f"belongs to {name_of_user(user)}")


def _walk(
    path: Path, open_last: Callable[[int, str], int], enter: Callable[[int, str], int]
) -> int:
    """Goes from name to name, so that each link is seen before it is followed.

    Returns open_last(folder, name) for the last one, and opens those before by enter(folder, name).
    Neither may follow a link.
    """
    names = list(reversed(path.parts))
    folder = os.open(names.pop() if path.is_absolute() else ".", os.O_PATH | os.O_CLOEXEC)
    links = 0
    try:
        while True:
            name = names.pop() if names else "."
            try:
                if not names:
                    return open_last(folder, name)
                _replace(folder, enter(folder, name))
                continue
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR) or links == _MOST_LINKS:
                    raise
                target = _target(path, folder, name)
            links += 1
            names += reversed(target.parts)
            if target.is_absolute():
                _replace(folder, os.open(names.pop(), os.O_PATH | os.O_CLOEXEC))
    finally:
        os.close(folder)


def _open_here(path: Path, folder: int, name: str, access: int, *, creates: bool) -> int:
    flags = access | _FLAGS | os.O_NOFOLLOW
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not creates:
            raise
        # A file that nobody has made before needs no check.
        return os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _refused(path, "is a pipe that nobody reads") from None
        raise
    try:
        _check(path, os.fstat(fd), reads=access == os.O_RDONLY)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check(path: Path, found: os.stat_result, *, reads: bool) -> None:
    if not _is_trusted(found.st_uid):
        raise _refused(path, f"belongs to {name_of_user(found.st_uid)}")
    if reads and not stat.S_ISREG(found.st_mode):
        raise _refused(path, "is no file")
    if not reads and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise _refused(path, f"has {found.st_nlink} names (hard links)")


def _replace(folder: int, by: int) -> None:
    os.dup2(by, folder, inheritable=False)
    os.close(by)


def _target(path: Path, folder: int, name: str) -> Path:
    """Returns where a link leads, if it may be followed."""
    link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = os.fstat(link)
        if not stat.S_ISLNK(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if not _is_trusted(found.st_uid):
            raise _refused(
                path, f"is reached by '{name}', a symbolic link of {name_of_user(found.st_uid)}"
            )
        return Path(os.readlink("", dir_fd=link))
    finally:
        os.close(link)


def _is_trusted(user: int) -> bool:
    return user in (os.geteuid(), 0)


def _refused(path: Path, why: str) -> NotOwnError:
    reason = f"{path} {why}; remove it, or name a place in a folder of your own"
    return NotOwnError(errno.EPERM, reason)
