"""torch_versions.py N...: tests with the oldest and newest PyTorch, inside N processes for each N.

Each has an environment of its own in build/; PyPI has PyTorch for Linux only with CUDA, so they
take several gigabytes. Warnings that something is deprecated are errors. What came of it is written
to docs/torch-versions.md.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import environment
from debian import ROOT

PAGE = ROOT / "docs/torch-versions.md"
TESTS = ROOT / "tests/python"
UNIT = [
    "test_core_module.py",
    "test_dropin.py",
    "test_horovod_signatures.py",
    "test_torch_import.py",
    "test_torchrun.py",
]
STRICT = ["-W", "error::DeprecationWarning", "-W", "error::FutureWarning"]
OF_RANK_0 = ("[0]<stdout>:", "[0]<stderr>:")

HEAD = """\
# Tested PyTorch versions

<!-- Written by `make torch-versions`. -->

Perseus supports PyTorch 2.1 and newer. Its Python tests about PyTorch run with the version of
`requirements/test.txt` at every change, and by `make torch-versions` with the oldest and the newest
version, where a warning that something is deprecated fails a test. What a version does not have,
such as `fully_shard`, is skipped.

"""


@dataclass
class Outcome:
    """One run of pytest."""

    torch: str
    numpy: str
    what: str
    status: int
    passed: int
    skipped: int
    seconds: float

    def row(self) -> str:
        result = "passed" if self.status == 0 else f"FAILED ({self.status})"
        return (
            f"| {self.torch} | {self.numpy} | {self.what} | {result} | {self.passed} "
            f"| {self.skipped} | {self.seconds:.0f} |"
        )


def make_environment(group: str) -> Path:
    """The environment's Python, which finds Perseus in this tree, where `make build` put it."""
    folder = ROOT / "build" / group
    environment.create(folder)
    environment.install(folder, group)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    (packages / "perseus-tree.pth").write_text(f"{ROOT}\n")
    return folder / "bin/python"


def version(python: Path, package: str) -> str:
    ask = f"from importlib.metadata import version; print(version('{package}'))"
    asked = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def run(python: Path, what: str, command: list[str]) -> Outcome:
    """Runs pytest, alone or as the ranks of a job, and shows what rank 0 prints."""
    torch, numpy = version(python, "torch"), version(python, "numpy")
    print(f"== PyTorch {torch}: {what}", flush=True)
    began = time.monotonic()
    last = ""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        assert job.stdout
        for line in job.stdout:
            tagged = line.startswith(OF_RANK_0)
            text = line.partition(":")[2] if tagged else line
            if tagged or not line.startswith("["):
                print(text, end="", flush=True)
            if re.search(r"\d+ (passed|failed).* in [\d.]+s", text):
                last = text
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|skipped)", last)}
    return Outcome(
        torch,
        numpy,
        what,
        job.returncode,
        counts.get("passed", 0),
        counts.get("skipped", 0),
        time.monotonic() - began,
    )


def run_all(python: Path, sizes: list[int]) -> list[Outcome]:
    pytest = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *STRICT]
    outcomes = [run(python, "unit", [*pytest, *(str(TESTS / "unit" / name) for name in UNIT)])]
    for size in sizes:
        launcher = [str(python), "-m", "perseus.run", "-np", str(size)]
        files = sorted(str(file) for file in (TESTS / "parallel").glob("test_torch_*.py"))
        outcomes.append(run(python, f"{size} ranks", [*launcher, *pytest, "-x", *files]))
    return outcomes


def write_page(outcomes: list[Outcome]) -> None:
    python = ".".join(map(str, sys.version_info[:2]))
    day = f"{datetime.datetime.now(datetime.timezone.utc):%d %B %Y}".lstrip("0")
    table = [
        "| PyTorch | NumPy | tests | result | passed | skipped | seconds |",
        "|---|---|---|---|---|---|---|",
        *(outcome.row() for outcome in outcomes),
    ]
    PAGE.write_text(
        HEAD + f"The last run, of {day}, with Python {python}:\n\n" + "\n".join(table) + "\n"
    )


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]]
    outcomes = []
    for group in ("torch-oldest", "torch-newest"):
        outcomes += run_all(make_environment(group), sizes)
    write_page(outcomes)
    print(f"== wrote {PAGE.relative_to(ROOT)}")
    for outcome in outcomes:
        print("  ", outcome.row())
    sys.exit(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    main()
