"""A plugin of pytest that writes each test's outcome to a file at once, so that a process that dies
or hangs leaves what it has found. HOROVOD_TESTS_OUTCOMES names a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_FILE = Path(os.environ["HOROVOD_TESTS_OUTCOMES"]) / f"{os.environ.get('PERSEUS_RANK', '0')}.jsonl"


def _write(test: str, outcome: str, why: str) -> None:
    with _FILE.open("a") as file:
        file.write(json.dumps([test, outcome, why]) + "\n")


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _write(report.nodeid, "not collected", str(report.longrepr)[-2000:])


def pytest_collection_finish(session: Any) -> None:
    for item in session.items:
        _write(item.nodeid, "collected", "")


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        _write(report.nodeid, "failed", str(report.longrepr)[-2000:])
    elif report.skipped:
        _write(report.nodeid, "skipped", str(report.longrepr[-1]))
    elif report.when == "call":
        _write(report.nodeid, "passed", "")
