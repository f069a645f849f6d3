"""What all Python tests share."""

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

# One thread a rank, as torchrun gives: several ranks' threads, each waiting actively for the others
# of its own, take the processors from each other. Read when PyTorch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

RunRanks = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what it puts into the background with this signal ignored, and so would be all
    # that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = os.environ.get("PERSEUS_TEST_RESULTS")
    if folder and Results.wanted(config):
        config.pluginmanager.register(Results(folder))


class Results:
    """Writes what was tested for scripts/ci.py, in the form of scripts/test_results.py."""

    #: What launchers call a rank. All ranks run the same tests: rank 0 tells of them.
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
