"""Notices that nothing comes from the launcher any more although the connection stands.

A machine that has lost its power, or its network, cannot close a connection. An agent imports this;
it needs only the standard library.
"""

from __future__ import annotations

import json
import time

NEVER = float("inf")


class LauncherSilence:
    """The launcher asks its agents often whether they are there (perseus.run.silence).

    Args:
      seconds: for which it may say nothing; None: for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = NEVER if seconds is None else seconds
        self._heard_at = time.monotonic()

    def hears(self) -> None:
        """Something has come from the launcher."""
        self._heard_at = time.monotonic()

    def deadline(self) -> float:
        """Returns when it will have said nothing for too long, by time.monotonic; or NEVER."""
        return self._heard_at + self._seconds

    def farewell(self) -> bytes:
        """Returns what ranks are told that end for that reason."""
        why = f"nothing has come from perseusrun's machine for {self._seconds:g} s"
        return json.dumps({"says": "abandoned", "why": why}).encode()
