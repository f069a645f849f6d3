"""Runs a command and returns what it has printed."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Mapping

from perseus.dropin.runner.common.util import safe_shell_exec

__all__ = ["execute"]


def execute(command: str, env: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """Returns a command's stdout and stderr, as they came, and its exit status.

    Returns None, with a report on stderr, if it cannot be run.
    """
    output = io.StringIO()
    try:
        status = safe_shell_exec.execute(command, env=env, stdout=output, stderr=output)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return None
    return output.getvalue(), status
