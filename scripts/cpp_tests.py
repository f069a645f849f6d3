"""cpp_tests.py [--build] [debug|address|thread|thread-all|alone]: builds and runs the C++ tests.

The tests are built as they are, with assertions, sanitized, or with each source compiled alone (see
cpp_build.py).
`thread` leaves out tests of code with only one thread; `thread-all` does not.
With --build, they are only built.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import cpp_build
import test_results
import toolchain
from debian import ROOT, skipped

# A finding must end the program, since a test that goes on after one may pass. That there is no
# memory is no finding: some tests ask for an exbibyte.
SANITIZER_OPTIONS = {
    # The leak check of clang++ 14 fails on the thread-local memory of libraries.
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:intercept_tls_get_addr=0"
    ":allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # A process that ends waits for 1 s while it has other threads, and tests fork thousands.
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1"
    ":atexit_sleep_ms=50",
}
#: Many tests wait for a while, so one more process fits.
PROCESSES = (os.cpu_count() or 1) + 1
#: A process runs a quarter of a program's tests, which takes a minute on a busy machine.
LONGEST_SECONDS = 400


def results(written: Path, output: str) -> test_results.Results:
    """Sums up what the processes wrote. A crash without a failed test counts as a failed test."""
    total = test_results.Results()
    told = set()
    for file in written.glob("*.xml"):
        for case in xml.parse(file).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None:
                total.failed += 1
                told.add(file.stem)
            elif case.get("result") == "skipped":
                total.skipped += 1
            else:
                total.passed += 1
            total.seconds[name] = float(case.get("time", 0))
    for name, outcome in re.findall(r"Test +#\d+: (\S+) [ .]*(Passed|\S+)", output):
        alone = not (written / f"{name}.xml").exists()
        total.passed += outcome == "Passed" and alone
        total.failed += outcome != "Passed" and name not in told
    return total


def run(purpose: str) -> int:
    folder = cpp_build.folder(purpose)
    written = folder / "test-results"
    shutil.rmtree(written, ignore_errors=True)
    ctest = [str(Path(sys.executable).parent / "ctest"), "--output-on-failure"]
    ctest += ["--test-dir", str(folder)]
    ctest += ["-j", str(PROCESSES), "--timeout", str(LONGEST_SECONDS)]
    # ThreadSanitizer of older compilers does not support the address randomisation of newer
    # kernels.
    if purpose.startswith("thread") and shutil.which("setarch"):
        ctest = ["setarch", platform.machine(), "-R", *ctest]
    output = []
    with subprocess.Popen(
        ctest,
        cwd=ROOT,
        env={**os.environ, **SANITIZER_OPTIONS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    found = results(written, "".join(output))
    test_results.write(found)
    print(f"{found.passed} passed, {found.failed} failed, {found.skipped} skipped")
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    purposes = ["", "debug", "address", "thread", "thread-all", "alone"]
    parser.add_argument("purpose", nargs="?", default="", choices=purposes)
    parser.add_argument("--build", action="store_true", help="only build them")
    args = parser.parse_args()
    if not toolchain.load().googletest:
        why = "GoogleTest could not be fetched; on Debian or Ubuntu: apt-get install libgtest-dev"
        return skipped("C++ tests", why)
    cpp_build.build(args.purpose)
    return 0 if args.build else run(args.purpose)


if __name__ == "__main__":
    sys.exit(main())
