"""The command that the ranks run, from the words after perseusrun's options."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
#: Takes the working folder off the path first, in which anybody may have put modules.
NOT_FROM_HERE = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
_CAN_IMPORT = (
    f"{NOT_FROM_HERE}import importlib.util; "
    "sys.exit(importlib.util.find_spec('perseus_core') is None)"
)
#: The longest that a Python may take to say whether it has Perseus.
_ANSWER_SECONDS = 10
#: The last lines of a program whose Python has no Perseus.
_LACKS_PERSEUS = (
    b"ModuleNotFoundError: No module named 'perseus'",
    b"ModuleNotFoundError: No module named 'perseus_core'",
)
#: Python's options that have a value of their own.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def command_of_ranks(words: Sequence[str], *, is_module: bool) -> list[str]:
    """Returns the command; a script or module runs in perseusrun's own Python, as with torchrun."""
    if is_module:
        return [sys.executable, "-m", *words]
    if words[0].endswith(".py"):
        return [sys.executable, *words]
    return list(words)


def note_on_python(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Returns a line for the user if the command is a Python that has no Perseus, else None.

    It says nothing of a Python in the same environment as perseusrun's, nor of one that it cannot
    find or run, for that is an error when the ranks start.
    """
    if not is_python(command[0]):
        return None
    found = _find(command[0], environment)
    if found is None or os.path.dirname(found) == os.path.dirname(sys.executable):
        return None
    try:
        asked = subprocess.run(
            [found, "-c", _CAN_IMPORT],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if asked.returncode != 1:
        return None
    which = f"{found} has" if found == command[0] else f"{command[0]} is {found}, which has"
    return (
        f"{which} no perseus; this perseusrun belongs to {sys.executable}, in which "
        "`perseusrun -np N script.py` runs a script"
    )


def note_on_lacking(command: Sequence[str], last_lines: Sequence[bytes]) -> str | None:
    """Returns a line for the user if a program has failed for want of Perseus, else None.

    A script of the shell, for example, may start another Python than perseusrun's. If the command
    itself is a Python, `note_on_python` has spoken of it.
    """
    if is_python(command[0]) or not any(line in last_lines for line in _LACKS_PERSEUS):
        return None
    return (
        f"the program's Python has no perseus; this perseusrun belongs to {sys.executable}: use "
        "that, or install Perseus for the other"
    )


def check_program(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises ValueError if this host has no such program, or no such script for its Python."""
    name = command[0]
    found = _find(name, environment)
    if found is None:
        raise ValueError(_why_not_found(name))
    interpreter = _interpreter(found)
    if interpreter and not os.path.exists(interpreter):
        raise ValueError(f"{_quoted(name)} is run by {interpreter}, and there is no such file")
    script = script_of(command)
    if script and script.endswith(".py") and not os.path.exists(script):
        raise ValueError(f"there is no file {_quoted(script)}{_nearest_file(script)}")


def is_python(name: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(name)) is not None


def script_of(command: Sequence[str]) -> str | None:
    """Returns the script that a Python runs; None if it runs none, or the command is no Python."""
    if not is_python(command[0]):
        return None
    arguments = iter(command[1:])
    for argument in arguments:
        if argument in _WITH_VALUE:
            next(arguments, None)
        elif argument.startswith(("-c", "-m")) or argument == "-":
            return None
        elif not argument.startswith("-"):
            return argument
    return None


def _find(name: str, environment: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=environment.get("PATH", os.defpath))


def _why_not_found(name: str) -> str:
    quoted = _quoted(name)
    if not name:
        return "the command begins with an empty word; it must be a program or a script"
    if os.path.isdir(name):
        return f"{quoted} is a folder; it must be a program"
    if os.path.exists(name) and "/" in name:
        return f"{quoted} is not executable; run `chmod +x {quoted}`, or give what runs it first"
    if os.path.exists(name):
        return f"there is no program {quoted} on PATH; the file here is ./{quoted}"
    if "/" in name:
        return f"there is no file {quoted}{_nearest_file(name)}"
    if is_python(name):
        return (
            f"there is no {quoted} on PATH; this perseusrun belongs to {sys.executable}, in which "
            "`perseusrun -np N script.py` runs a script"
        )
    return f"there is no program {quoted} on PATH"


def _interpreter(path: str) -> str | None:
    """Returns what the first line of a script says that it is run by."""
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return None  # a program may be executable and not readable
    words = first[2:].split()
    return os.fsdecode(words[0]) if first.startswith(b"#!") and words else None


def _nearest_file(name: str) -> str:
    folder, base = os.path.split(name)
    try:
        there = os.listdir(folder or ".")
    except OSError:
        return ""
    near = difflib.get_close_matches(base, there, 1)
    return f"; did you mean {_quoted(os.path.join(folder, near[0]))}?" if near else ""


def _quoted(name: str) -> str:
    return shlex.quote(name)
