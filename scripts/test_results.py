"""Test results for the table that CI ends with: each program that runs tests writes one JSON file.

`write` puts a file into the folder that PERSEUS_TEST_RESULTS names, if that is set. CI sets it to
another folder for each of its parts, and `read` sums up a folder's files. For pytest,
tests/python/conftest.py writes the file.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = "PERSEUS_TEST_RESULTS"


@dataclass
class Results:
    """How many tests passed, failed and were skipped, and the seconds of each test."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, other: Results) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.seconds.update(other.seconds)


def write(results: Results) -> None:
    if folder := os.environ.get(FOLDER):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{uuid.uuid4()}.json").write_text(json.dumps(asdict(results)))


def of_checks(checks: Iterable[tuple[str, bool, float]]) -> Results:
    """Returns the results of checks, each given as name, whether it passed, and seconds."""
    results = Results()
    for name, passed, seconds in checks:
        results.add(Results(int(passed), int(not passed), 0, {name: seconds}))
    return results


def read(folder: Path) -> Results:
    total = Results()
    for file in sorted(folder.glob("*.json")):
        total.add(Results(**json.loads(file.read_text())))
    return total
