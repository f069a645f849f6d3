"""test_one.py TEST [--ranks N...]: runs one test, or one file of tests, the way that CI runs it.

TEST is a file or test of Python (tests/python/unit/test_hosts.py::test_a_name), a file of C++
(tests/cpp/transport/mesh_test.cc), or a pattern of GoogleTest (MeshTest.*). Tests that run inside
each rank are started by perseusrun, at each number of ranks that is given. Run it with the
environment's Python, after `make build env-test`, or by `make test-one T=TEST`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import cpp_build
import environment
import mxnet_tests
import python_tests
from debian import ROOT

#: Folders of tests/python whose tests run inside each rank.
IN_RANKS = ("parallel", "tensorflow", "keras_torch", "mxnet_adapter")
#: Those that need an MPI's environment, and its mpirun.
OF_MPI = ("mpi", "mpirun")
SUITE = re.compile(r"^TEST(?:_F|_P)?\((\w+)", re.M)


def python_test(test: str, ranks: list[int]) -> int:
    """Runs a file of tests, or the one test of it that follows '::'."""
    file, separator, name = test.partition("::")
    path = Path(file).resolve()
    if not path.is_file() or not path.is_relative_to(python_tests.TESTS):
        sys.exit(f"make: {file} is no file of tests/python")
    relative = path.relative_to(python_tests.TESTS)
    folder, name = relative.parts[0], f"{relative}{separator}{name}"
    if folder in OF_MPI:
        sys.exit(f"make: the tests of {folder} need an MPI; `make mpi-tests` runs them")
    python, options = sys.executable, ["-m", ""]  # also what is marked as long
    if folder.startswith("mxnet"):
        python, options = str(environment.of_the_tree("mxnet")), mxnet_tests.OPTIONS
    if folder not in IN_RANKS:
        return python_tests.alone(name, *options, python=python)
    statuses = []
    for size in ranks:
        print(f"== {size} rank(s)", flush=True)
        statuses.append(python_tests.parallel(name, size, *options, python=python))
    return next((status for status in statuses if status != 0), 0)


def cpp_program(pattern: str) -> tuple[str, str]:
    """Returns the program that has the tests, and GoogleTest's filter for them."""
    sources = sorted((ROOT / "tests/cpp").glob("*/*_test.cc"))
    if pattern.endswith(".cc"):
        sources = [source for source in sources if source == Path(pattern).resolve()]
        suites = sorted(
            {suite for source in sources for suite in SUITE.findall(source.read_text())}
        )
        pattern = ":".join(f"{suite}.*:*/{suite}.*" for suite in suites)
    else:
        suite = pattern.partition(".")[0].rpartition("/")[2]
        sources = [source for source in sources if suite in SUITE.findall(source.read_text())]
    if not sources:
        sys.exit(f"make: no file in tests/cpp has {pattern}; T is a file, or Suite.Name")
    return f"{sources[0].parent.name}_test", pattern


def cpp_test(pattern: str) -> int:
    program, pattern = cpp_program(pattern)
    cpp_build.build("", [program], quiet=True)
    found = next(cpp_build.folder("").rglob(program))
    return subprocess.run([str(found), f"--gtest_filter={pattern}"], cwd=ROOT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("test", metavar="TEST")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 3, 4], metavar="N")
    args = parser.parse_args()
    os.chdir(ROOT)
    return python_test(args.test, args.ranks) if ".py" in args.test else cpp_test(args.test)


if __name__ == "__main__":
    sys.exit(main())
