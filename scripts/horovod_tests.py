"""horovod_tests.py [--ranks N]... [--source FOLDER [--elastic]] [FILE...]: Horovod's own tests.

They run unmodified on Perseus, through the drop-in, inside N ranks. They come from the source
distribution of Horovod 0.19.5 on the package index, which is the last that holds tests; --source
names a clone of Horovod instead, such as one of 0.28.1, whose tests are in test/parallel. FILE is
such as test_torch.py.

--elastic runs the clone's tests of elastic jobs, which start ranks themselves. Those that Horovod
skips because it fails them run, too.

tests/horovod/explained.json gives the reason for each test that cannot pass; any other failure is
an error, and so is an explained one that passes.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from debian import ROOT

RELEASE = "0.19.5"
FOLDER = ROOT / "build/horovod-tests"
OURS = ROOT / "tests/horovod"
#: Tests in the source distribution that run inside ranks; others are of the launcher and of Spark.
IN_RANKS = (
    *("test_torch.py", "test_adasum_pytorch.py", "test_common.py", "test_timeline.py"),
    *("test_tensorflow.py", "test_adasum_tensorflow.py", "test_tensorflow2_keras.py"),
    *("test_tensorflow_keras.py", "test_keras.py", "test_mxnet.py"),
)
#: Tests of elastic jobs in a clone, but for those on Spark and on Ray.
ELASTIC = (
    "single/test_elastic_*.py",
    "single/test_torch_elastic.py",
    "integration/test_elastic_*.py",
)
#: A job in which a rank has failed a test that the others pass waits for it; then it is ended.
SETTINGS = {"PERSEUS_STALL_CHECK_TIME_SECONDS": "10", "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS": "20"}
TEST_SECONDS = 120
FILE_SECONDS = 1200
ALONE_SECONDS = 180


@dataclass
class Outcomes:
    """What became of the tests of one file at one number of ranks."""

    file: str
    size: int
    tests: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def count(self, outcome: str) -> int:
        return sum(1 for each in self.tests.values() if each == outcome)

    def failed(self) -> list[str]:
        """Returns the tests that have not passed, those that did not end or begin too."""
        return [test for test, each in self.tests.items() if each not in ("passed", "skipped")]


def fetched() -> Path:
    """Returns the folder of the tests in the source distribution, which it fetches once."""
    tests = FOLDER / f"horovod-{RELEASE}/test"
    if not tests.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", str(FOLDER)]
        fetch = [sys.executable, "-m", "pip", "download", "-q", f"horovod=={RELEASE}", *options]
        if subprocess.run(fetch).returncode != 0:
            sys.exit(f"horovod=={RELEASE} cannot be had; give a clone of Horovod with --source")
        with tarfile.open(FOLDER / f"horovod-{RELEASE}.tar.gz") as archive:
            archive.extractall(FOLDER, filter="data")
    return tests


def test_files(source: str | None, elastic: bool) -> list[Path]:
    if elastic:
        if source is None:
            sys.exit("--elastic needs --source; no source distribution holds tests of elastic jobs")
        tests = Path(source).resolve() / "test"
        found = sorted(file for pattern in ELASTIC for file in tests.glob(pattern))
        if not found:
            sys.exit(f"{source} has no test/{ELASTIC[0]}; --source must be a clone of Horovod")
        return [file for file in found if "spark" not in file.name]
    if source is None:
        return [fetched() / name for name in IN_RANKS]
    parallel = Path(source).resolve() / "test/parallel"
    if not parallel.is_dir():
        sys.exit(f"{source} has no folder test/parallel; --source must be a clone of Horovod")
    return sorted(parallel.glob("test_*.py"))


def python_for(file: Path) -> str | None:
    """Returns the Python to run a file's tests with; None if there is none for it."""
    if "mxnet" not in file.name:
        return sys.executable
    python = ROOT / "build/mxnet/bin/python"
    return str(python) if python.exists() else None


def starts_ranks(file: Path) -> bool:
    """Returns whether a file's tests start the ranks that they need themselves."""
    return file.parent.name in ("single", "integration")


def run(file: Path, size: int, python: str, tests: list[str], seconds: int) -> Outcomes:
    """Runs a file's tests, or those that are named, in one job, or in one process that starts
    jobs."""
    kept = Path(tempfile.mkdtemp(prefix="outcomes-", dir=FOLDER))
    path = [str(OURS), str(ROOT)]
    plugins = ["-p", "outcomes", "-p", "no:cacheprovider"]
    if not (file.parent.parent / "utils/common.py").exists():
        path.append(str(OURS / "without_common"))
        plugins += ["-p", "older_names"]
    if starts_ranks(file):
        path.append(str(file.parent.parent / "utils"))
        plugins += ["-p", "unskipped"]
    environment = {
        **os.environ,
        **SETTINGS,
        "PYTHONPATH": os.pathsep.join(path),
        "HOROVOD_TESTS_OUTCOMES": str(kept),
    }
    # Our own settings of pytest do not count, and tests are named by their files alone.
    pytest = [python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(file.parent)]
    pytest += [*plugins, "--timeout", str(TEST_SECONDS), *(tests or [file.name])]
    launcher = [python, "-m", "perseus.run", "--drop-in", "--quiet", "-np", str(size), *pytest]
    if starts_ranks(file):
        launcher = [python, "-m", "perseus.dropin", *pytest[1:]]
    log = FOLDER / f"{file.stem}-{size}.log"
    with log.open("a" if tests else "w") as output:
        job = subprocess.Popen(
            launcher, cwd=file.parent, env=environment, stdout=output, stderr=output
        )
        try:
            job.wait(seconds)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait()
    found = read(kept, file.name, size)
    shutil.rmtree(kept)
    return found


def read(kept: Path, file: str, size: int) -> Outcomes:
    """Puts together what the ranks say: a test passes if it passes on all of them."""
    order = ["skipped", "passed", "collected", "failed", "not collected"]
    found = Outcomes(file, size)
    by_rank: list[dict[str, str]] = []
    for rank in range(size):
        of_rank: dict[str, str] = {}
        lines = kept / f"{rank}.jsonl"
        for line in lines.read_text().splitlines() if lines.exists() else []:
            test, outcome, why = json.loads(line)
            if of_rank.get(test) != "failed":
                of_rank[test] = outcome
                found.why[test] = why or found.why.get(test, "")
        by_rank.append(of_rank)
    for test in dict.fromkeys(test for of_rank in by_rank for test in of_rank):
        outcomes = [of_rank.get(test, "collected") for of_rank in by_rank]
        found.tests[test] = max(outcomes, key=order.index)
    return found


def run_file(file: Path, size: int, python: str) -> Outcomes:
    """Runs a file in one job, and then each test alone that has failed or has not ended in it.

    A test that fails on one rank alone leaves the ranks at different operations.
    """
    found = run(file, size, python, [], FILE_SECONDS)
    for test, outcome in list(found.tests.items()):
        if outcome in ("failed", "collected"):
            alone = run(file, size, python, [test], ALONE_SECONDS)
            found.tests[test] = alone.tests.get(test, "collected")
            found.why[test] = alone.why.get(test, "") or "its job did not end"
    return found


def explanation(explained: dict[str, str], test: str, size: int) -> str | None:
    """Returns the reason for a test that cannot pass; a key may be a pattern, and end in @N for N
    ranks alone."""
    for key, why in explained.items():
        pattern, _, only = key.partition("@")
        if fnmatch.fnmatchcase(test, pattern) and only in ("", str(size)):
            return why
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument(
        "--ranks", type=int, action="append", metavar="N", help="2 and 3 if not given"
    )
    parser.add_argument("--source", metavar="FOLDER", help="a clone of Horovod")
    parser.add_argument("--elastic", action="store_true", help="its tests of elastic jobs")
    args = parser.parse_args()
    explained = json.loads((OURS / "explained.json").read_text())
    done = []
    for file in test_files(args.source, args.elastic):
        if args.files and file.name not in args.files:
            continue
        python = python_for(file)
        if python is None:
            print(f"{file.name}: left out, for there is no build/mxnet; see `make mxnet-tests`")
            continue
        for size in [1] if args.elastic else args.ranks or [2, 3]:
            done.append(run_file(file, size, python))
            print("\n".join(report(done[-1], explained)), flush=True)
    print("\n| file | ranks | collected | pass | skipped | fail |\n|---|---|---|---|---|---|")
    print(*map(row, done), sep="\n")
    surprises = [surprise for found in done for surprise in surprising(found, explained)]
    print(*surprises, sep="\n")
    sys.exit(bool(surprises))


def row(found: Outcomes) -> str:
    numbers = [found.size, len(found.tests), found.count("passed"), found.count("skipped")]
    failed = len(found.failed())
    return f"| {' | '.join(map(str, [found.file, *numbers, failed]))} |"


def report(found: Outcomes, explained: dict[str, str]) -> list[str]:
    """Returns lines: the numbers, and why tests were skipped or have failed."""
    skipped = [found.why[test] for test, outcome in found.tests.items() if outcome == "skipped"]
    lines = [row(found)]
    for why, number in collections.Counter(skipped).items():
        lines.append(f"    {number} skipped: {why.removeprefix('Skipped: ')}")
    for test in found.failed():
        said = [line for line in found.why[test].splitlines() if line.startswith("E  ")] or [""]
        why = explanation(explained, test, found.size) or said[0].removeprefix("E").strip()
        lines.append(f"    {test} {found.tests[test]}: {why}")
    return lines


def surprising(found: Outcomes, explained: dict[str, str]) -> list[str]:
    """Returns lines on tests that fail without a reason, or that pass though they have one."""
    lines = []
    for test, outcome in found.tests.items():
        has_reason = explanation(explained, test, found.size) is not None
        if outcome == "passed" and has_reason:
            lines.append(f"{test} passes at {found.size} ranks, and explained.json says why not")
        elif test in found.failed() and not has_reason:
            lines.append(f"{test} fails at {found.size} ranks, and explained.json does not say why")
    return lines


if __name__ == "__main__":
    main()
