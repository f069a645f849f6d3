"""framework_versions.py FRAMEWORK N...: tests with the oldest and the newest PyTorch or TensorFlow.

The tests run inside N processes for each N, with what `make build` put into this tree, which is the
same for all versions. Each version has an environment of its own in build/. PyPI has PyTorch for
Linux only with CUDA, so those environments take several gigabytes. The results are written to
docs/FRAMEWORK-versions.md.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import environment
import python_tests
from debian import ROOT

TESTS = ROOT / "tests/python"
WIDTH = 100
OF_RANK_0 = ("[0]<stdout>:", "[0]<stderr>:")

HEAD = """\
# Tested {name} versions

<!-- Written by `make {framework}-versions`. -->

{introduction}

```bash
make {framework}-versions
```

{note}

The last run was on {day}, with Python {python}:

"""
INTRODUCTION = (
    "You can use Perseus with {name} {oldest} or newer. Every change is tested with the version in "
    "`requirements/test.txt`. Run this in a clone to test with the oldest and the newest version, "
    "too:"
)


@dataclass
class Framework:
    """Describes the tests of a framework."""

    name: str
    package: str
    oldest: str
    unit: list[str]
    parallel: list[Path]
    options: list[str]
    note: str


FRAMEWORKS = {
    "torch": Framework(
        "PyTorch",
        "torch",
        "2.1",
        [
            "test_core_module.py",
            "test_dropin.py",
            "test_horovod_signatures.py",
            "test_torch_beside_gloo.py",
            "test_torch_import.py",
            "test_torchrun.py",
        ],
        sorted((TESTS / "parallel").glob("test_torch_*.py")),
        ["-W", "error::DeprecationWarning", "-W", "error::FutureWarning"],
        "A test fails if PyTorch warns that something is deprecated. Tests of features that a "
        "version lacks, such as `fully_shard`, are skipped.",
    ),
    # TensorFlow itself causes such warnings, so they are not errors here.
    "tensorflow": Framework(
        "TensorFlow",
        "tensorflow-cpu",
        "2.13",
        [],
        [TESTS / "tensorflow"],
        [],
        "The oldest comes with Keras 2, the newest with Keras 3.",
    ),
}


@dataclass
class Outcome:
    """One run of pytest."""

    version: str
    numpy: str
    what: str
    status: int
    passed: int
    skipped: int
    seconds: float

    def row(self) -> str:
        result = "passed" if self.status == 0 else f"FAILED ({self.status})"
        return (
            f"| {self.version} | {self.numpy} | {self.what} | {result} | {self.passed} "
            f"| {self.skipped} | {self.seconds:.0f} |"
        )


def version(python: Path, package: str) -> str:
    ask = f"from importlib.metadata import version; print(version('{package}'))"
    asked = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def run(framework: Framework, python: Path, what: str, command: list[str]) -> Outcome:
    """Runs pytest, in one process or as the ranks of a job, and shows what rank 0 prints."""
    tested, numpy = version(python, framework.package), version(python, "numpy")
    print(f"== {framework.name} {tested}: {what}", flush=True)
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
        tested,
        numpy,
        what,
        job.returncode,
        counts.get("passed", 0),
        counts.get("skipped", 0),
        time.monotonic() - began,
    )


def run_all(framework: Framework, python: Path, sizes: list[int]) -> list[Outcome]:
    pytest = [*python_tests.pytest(str(python)), *framework.options]
    outcomes = []
    if framework.unit:
        files = [str(TESTS / "unit" / name) for name in framework.unit]
        outcomes.append(run(framework, python, "unit", [*pytest, *files]))
    for size in sizes:
        launcher = [str(python), "-m", "perseus.run", "-np", str(size)]
        command = [*launcher, *pytest, "-x", *map(str, framework.parallel)]
        what = f"{size} ranks" if size > 1 else "1 rank"
        outcomes.append(run(framework, python, what, command))
    return outcomes


def write_page(key: str, outcomes: list[Outcome]) -> Path:
    framework = FRAMEWORKS[key]
    head = HEAD.format(
        name=framework.name,
        framework=key,
        introduction=textwrap.fill(
            INTRODUCTION.format(name=framework.name, oldest=framework.oldest), WIDTH
        ),
        note=textwrap.fill(framework.note, WIDTH),
        day=f"{datetime.datetime.now(datetime.timezone.utc):%d %B %Y}".lstrip("0"),
        python=".".join(map(str, sys.version_info[:2])),
    )
    table = [
        f"| {framework.name} | NumPy | tests | result | passed | skipped | seconds |",
        "|---|---|---|---|---|---|---|",
        *(outcome.row() for outcome in outcomes),
    ]
    page = ROOT / f"docs/{key}-versions.md"
    page.write_text(head + "\n".join(table) + "\n")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("sizes", nargs="+", type=int, metavar="N", help="numbers of processes")
    chosen = parser.parse_args()
    outcomes = []
    for age in ("oldest", "newest"):
        python = environment.of_the_tree(f"{chosen.framework}-{age}")
        outcomes += run_all(FRAMEWORKS[chosen.framework], python, chosen.sizes)
    page = write_page(chosen.framework, outcomes)
    print(f"== wrote {page.relative_to(ROOT)}")
    for outcome in outcomes:
        print("  ", outcome.row())
    sys.exit(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    main()
