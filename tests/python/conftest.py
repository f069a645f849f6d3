"""What all Python tests share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

RunRanks = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure() -> None:
    # A shell starts what it puts into the background with this signal ignored, and so would be all
    # that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def all_well(result: subprocess.CompletedProcess[str], ranks: int) -> None:
    """Each rank of a job of run_ranks was to say "well" at its end."""
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == ranks, result.stdout


def skip_or_fail(why: str) -> NoReturn:
    """Skips the test, or fails it where nothing may be skipped."""
    if os.environ.get("NO_SKIP"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def run_ranks(tmp_path: Path) -> RunRanks:
    """run_ranks(size, script, ...): runs the text of a Python script as the ranks of a job.

    `options` are perseusrun's, `environment` replaces ours. After `timeout` s the job is killed
    and the test fails. Gives the launcher's exit status, stdout and stderr, with the ranks' tags.
    """

    def run(
        size: int,
        script: str,
        *,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "program.py"
        program.write_text(script)
        launcher = [sys.executable, "-m", "perseus.run", "-np", str(size), *options]
        return subprocess.run(
            [*launcher, sys.executable, str(program)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
