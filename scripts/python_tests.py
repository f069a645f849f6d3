"""python_tests.py N...: runs the Python tests: alone, inside N processes for each N, over hosts.

Run by the environment's Python. All parts run, whatever fails; the end says which did.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import time
from pathlib import Path

from debian import ROOT

TESTS = ROOT / "tests/python"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
# pytest's own status when it found no test.
NO_TESTS = 5
# These take minutes at each number of ranks: others than these are for `make tensorflow-versions`.
# The same cases run on PyTorch at all.
KERAS, KERAS_RANKS = TESTS / "tensorflow/test_keras.py", (2,)
OF_RANK_0 = ("[0]<stdout>:", "[0]<stderr>:")


def alone(folder: str) -> int:
    return subprocess.run([*PYTEST, "--durations=30", str(TESTS / folder)], cwd=ROOT).returncode


def parallel(folder: str, ranks: int) -> int:
    """Every rank runs all tests; rank 0 is shown, and the end of the others if something failed."""
    logs = ROOT / f"build/test-output/{folder}-{ranks}-ranks"
    shutil.rmtree(logs, ignore_errors=True)
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks)]
    launcher += ["--output-filename", str(logs)]
    # -x: a rank that fails a test that others pass is out of step with them from then on.
    command = [*launcher, *PYTEST, "-x", str(TESTS / folder)]
    command += [] if ranks in KERAS_RANKS else [f"--ignore={KERAS}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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


def main() -> None:
    parts = [("unit", lambda: alone("unit"))]
    for ranks in map(int, sys.argv[1:]):
        for folder in ("parallel", "tensorflow", "keras_torch"):
            run = functools.partial(parallel, folder, ranks)
            parts.append((f"{folder}, {ranks} rank(s)", run))
    parts.append(("hosts", lambda: alone("hosts")))
    results = []
    for name, run in parts:
        print(f"== Python tests: {name}", flush=True)
        began = time.monotonic()
        status = run()
        results.append((name, status, time.monotonic() - began))
    print("== Python tests")
    for name, status, seconds in results:
        outcome = {0: "passed", NO_TESTS: "FAILED: no tests"}.get(status, f"FAILED ({status})")
        print(f"   {name:24} {outcome:10} {seconds:6.1f} s")
    sys.exit(any(status for _, status, _ in results))


if __name__ == "__main__":
    main()
