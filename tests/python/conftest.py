"""Fixtures and hooks that all Python tests share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

# Each rank gets one thread, as with torchrun. The threads of a rank wait for each other actively,
# so those of several ranks would take the processors from each other. PyTorch reads this on import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# PyTorch's TCPStore asks DNS for the name of each address that connects, 127.0.0.1 among them. An
# answer that gets lost would cost a test five seconds.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:2")

# Nothing is left of an elastic job whose launcher a test kills, as when it takes too long.
os.environ.setdefault("PERSEUSRUN_IF_KILLED", "end")

RunRanks = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with this signal ignored. The processes that tests start and
    # interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = os.environ.get("PERSEUS_TEST_RESULTS")
    if folder and Results.wanted(config):
        config.pluginmanager.register(Results(folder))


class Results:
    """Writes the results of the tests for scripts/ci.py, in the form of scripts/test_results.py."""

    #: The variables by which launchers tell a rank. All ranks run the same tests; rank 0 reports.
    RANKS = ("PERSEUS_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.outcomes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    @classmethod
    def wanted(cls, config: pytest.Config) -> bool:
        is_worker = hasattr(config, "workerinput")  # pytest-xdist's
        return not is_worker and all(os.environ.get(name, "0") == "0" for name in cls.RANKS)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration
        if self.outcomes.get(name) != "failed" and (report.when == "call" or not report.passed):
            self.outcomes[name] = report.outcome

    def pytest_sessionfinish(self) -> None:
        counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
        for outcome in self.outcomes.values():
            counts[outcome] += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{uuid.uuid4()}.json"
        file.write_text(json.dumps({**counts, "seconds": self.seconds}))


def all_well(result: subprocess.CompletedProcess[str], ranks: int) -> None:
    """Asserts that the job succeeded and that each of its ranks printed "well"."""
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

    `options` are perseusrun's, and `environment` replaces this process's. After `timeout` s the job
    is killed and the test fails. Returns the launcher's exit status, stdout and stderr, with the
    ranks' tags.
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
