"""The command that the ranks run, from the words after perseusrun's options."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_CAN_IMPORT = "import importlib.util, sys; sys.exit(importlib.util.find_spec('perseus') is None)"
#: The longest that a Python may take to say whether it has Perseus.
_ANSWER_SECONDS = 10


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
    if not _PYTHON.fullmatch(os.path.basename(command[0])):
        return None
    found = shutil.which(command[0], path=environment.get("PATH"))
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
