"""The place in the user's program that a call came from."""

from __future__ import annotations

import sys

_NOT_THE_USERS = ("perseus.", "torch.")


def user_stacklevel() -> int:
    """Returns the stacklevel with which a warning in the calling function shows the user's line."""
    level = 1
    frame = sys._getframe(level)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_NOT_THE_USERS):
        frame = frame.f_back
        level += 1
    return level
