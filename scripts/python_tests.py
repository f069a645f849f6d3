"""python_tests.py [PART...] [--ranks N...]: runs the Python tests, or these parts of them.

unit: tests of one process; limits: those of them that have limits of time; ranks: tests inside N
processes, for each N; frameworks: the programs in C++; hosts: tests over several hosts. Run it with
the environment's Python. All parts run, even if one fails; the last lines name those that failed.
With --all-ranks, the files of ONLY_AT run at each N, too. With --long, unit, frameworks and
hosts run only their tests that are marked as long, which they leave out otherwise.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import debian
import quick_gc
from debian import ROOT

TESTS = ROOT / "tests/python"
# pytest's exit status when it found no test.
NO_TESTS = 5
#: Files that take up to a minute at each number of ranks, nearly all of it in the framework, which
#: traces and compiles models. Other files test at every number of ranks what these ask of the
#: engine, so these run at fewer numbers unless all are asked for. The Keras cases of TensorFlow and
#: of PyTorch are the same. The first pattern that a file matches is the one that counts.
ONLY_AT = {
    "parallel/test_torch_c10d_compiled.py": (2,),
    "parallel/test_torch_with_compile.py": (2,),
    "tensorflow/test_keras.py": (2,),
    "tensorflow/*": (1, 3),
    "keras_torch/*": (2,),
    "mxnet_adapter/*": (3,),
}
# The frameworks that tests/python/cpp_frameworks has programs for.
CPP_FRAMEWORKS = ["tiny-dnn", "libcereal-dev", "libstb-dev", "libdlib-dev"]
#: Tests of one process mostly wait for the processes that they start, so one more worker fits.
WORKERS = (os.cpu_count() or 1) + 1
#: Files whose tests have limits of a few seconds, or wait that long: they run one after the other.
WITH_LIMITS = [
    f"test_{name}.py"
    for name in (
        "descriptor_exhaustion",
        "floods",
        "guardian",
        "interrupted_calls",
        "launcher",
        "meeting",
        "mpi",
        "output_readers",
        "perseusrun",
        "process_life",
        "rank_stdin",
        "remote_shell",
        "silent_ranks",
        "stalls",
        "strangers",
        "survivors",
    )
]
#: Those of them that test how processes end or what becomes of memory.
WITH_LIMITS_AND_ENDS = ["test_interrupted_calls.py", "test_process_life.py"]
#: For parts whose processes import a framework and end soon, and that do not test how they end.
QUICK_GC = {quick_gc.VARIABLE: "1"}
OF_RANK_0 = ("[0]<stdout>:", "[0]<stderr>:")


def pytest(python: str) -> list[str]:
    """Returns the command to run pytest, without plugins that no test uses. The one that captures
    log messages takes a tenth of the time of short tests."""
    return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:logging"]


def alone(folder: str, *options: str, python: str = sys.executable, **variables: str) -> int:
    command = [*pytest(python), "--durations=30", str(TESTS / folder), *options]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode


def cpp_frameworks(mark: str) -> int:
    """Runs the tests of C++ frameworks; skips those not installed, which only root can install."""
    there = all(
        Path("/usr/include", name).exists() for name in ("tiny_dnn", "cereal", "stb", "dlib")
    )
    if os.geteuid() == 0 and not there:
        debian.fetch(CPP_FRAMEWORKS)
    return alone("cpp_frameworks", "-m", mark)


def parallel(folder: str, ranks: int, *options: str, python: str = sys.executable) -> int:
    """Runs all tests on every rank. Shows rank 0, and the end of the others if something failed."""
    logs = ROOT / f"build/test-output/{folder}-{ranks}-ranks"
    shutil.rmtree(logs, ignore_errors=True)
    launcher = [python, "-m", "perseus.run", "-np", str(ranks)]
    launcher += ["--output-filename", str(logs)]
    # -x: after a rank fails a test that others pass, it is out of step with them.
    command = [*launcher, *pytest(python), "-x", str(TESTS / folder), *options]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **QUICK_GC},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        assert job.stdout
        for line in job.stdout:
            if line.startswith(OF_RANK_0):
                print(line.partition(":")[2], end="", flush=True)
            elif line.startswith("perseusrun:"):
                print(line, end="", flush=True)
    if job.returncode != 0:
        for rank in range(1, ranks):
            show_end(logs / f"rank.{rank}/stdout")
    return job.returncode


def show_end(file: Path) -> None:
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    print(f"---- the end of {file.relative_to(ROOT)}")
    print("\n".join(lines[-40:]))


Part = tuple[str, Callable[[], int]]


def left_out(folder: str, ranks: int) -> list[str]:
    """Returns the files of a folder that ONLY_AT leaves out at this number of ranks."""
    return [file for file in test_files(folder) if ranks not in wanted_at(file, ranks)]


def test_files(folder: str) -> list[str]:
    return [f"{folder}/{file.name}" for file in sorted((TESTS / folder).glob("test_*.py"))]


def wanted_at(file: str, default: int) -> tuple[int, ...]:
    """Returns the numbers of ranks of a file; `default` if ONLY_AT does not say."""
    found = (only for pattern, only in ONLY_AT.items() if fnmatch.fnmatch(file, pattern))
    return next(found, (default,))


def of_ranks(
    folder: str, sizes: Iterable[int], *options: str, python: str, all_files: bool = False
) -> list[Part]:
    """Makes a part for each number of ranks at which the folder has tests."""
    parts: list[Part] = []
    for ranks in sizes:
        omitted = [] if all_files else left_out(folder, ranks)
        if len(test_files(folder)) > len(omitted):
            ignored = [f"--ignore={TESTS / file}" for file in omitted]
            test = functools.partial(parallel, folder, ranks, *options, *ignored, python=python)
            parts.append((f"{folder}, {ranks} rank(s)", test))
    return parts


def run(title: str, parts: Iterable[Part]) -> None:
    """Runs all parts, even if some fail, and exits with 1 if one did."""
    results = []
    for name, part in parts:
        print(f"== {title}: {name}", flush=True)
        began = time.monotonic()
        status = part()
        results.append((name, status, time.monotonic() - began))
    print(f"== {title}")
    for name, status, seconds in results:
        outcome = {0: "passed", NO_TESTS: "FAILED: no tests"}.get(status, f"FAILED ({status})")
        print(f"   {name:24} {outcome:10} {seconds:6.1f} s")
    sys.exit(any(status for _, status, _ in results))


def unit(mark: str) -> int:
    """Runs each file in one worker, since the tests of some files share what a fixture made."""
    others = [f"--ignore={TESTS / 'unit' / name}" for name in WITH_LIMITS]
    parallel_files = ("-n", str(WORKERS), "--dist", "loadfile")
    return alone("unit", "-m", mark, *parallel_files, *others, **QUICK_GC)


def limits() -> int:
    rest = [name for name in WITH_LIMITS if name not in WITH_LIMITS_AND_ENDS]
    statuses = [in_turn(rest, **QUICK_GC), in_turn(WITH_LIMITS_AND_ENDS)]
    # A status is negative if a signal ended pytest.
    return next((status for status in statuses if status != 0), 0)


def in_turn(names: list[str], **variables: str) -> int:
    first, *others = names
    return alone(f"unit/{first}", *(str(TESTS / "unit" / name) for name in others), **variables)


def main() -> None:
    every = ["unit", "limits", "ranks", "frameworks", "hosts"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(every))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 3, 4], metavar="N")
    parser.add_argument("--all-ranks", action="store_true", help="run all files at each N")
    parser.add_argument("--long", action="store_true", help="run what is marked as long")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(every):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    wanted = args.parts or every
    mark = "long" if args.long else "not long"
    parts: list[Part] = []
    if "unit" in wanted:
        parts.append(("unit", functools.partial(unit, mark)))
    if "limits" in wanted:
        parts.append(("unit, with limits of time", limits))
    if "ranks" in wanted:
        for ranks in args.ranks:
            for folder in ("parallel", "tensorflow", "keras_torch"):
                parts += of_ranks(folder, [ranks], python=sys.executable, all_files=args.all_ranks)
    if "frameworks" in wanted:
        parts.append(("C++ frameworks", functools.partial(cpp_frameworks, mark)))
    if "hosts" in wanted:
        parts.append(("hosts", functools.partial(alone, "hosts", "-m", mark, **QUICK_GC)))
    run("Python tests", parts)


if __name__ == "__main__":
    main()
