"""mpi_tests.py [--all]: runs the tests that need a real MPI, under each one in build/.

Run with the environment's Python. For each MPI it runs the C++ tests of bootstrap and transport,
the parallel Python tests with MPI as the transport, those of worlds and sets started by its mpirun
and by `perseusrun --mpi`, the tests of mpi4py's communicators, and those that start an mpirun
themselves. Without --all, fewer of the parallel tests move their data over MPI, since the rest
would take minutes to make the same few calls of MPI with other arguments. With MPICH, only the C++
tests move data, and of the tests that start an mpirun only those of children are run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import cpp_build
import python_tests
import toolchain
from debian import ROOT

RANKS = "2"
PYTEST = [*python_tests.pytest(sys.executable), "-x"]
SUITE = str(ROOT / "tests/python/parallel")
# If MPI only brings the ranks together, only these tests depend on it.
WORLDS = [
    f"{SUITE}/test_{name}.py"
    for name in (
        "core_collectives",
        "core_process",
        "torch_c10d",
        "torch_elastic",
        "torch_process_sets",
    )
]
COMMUNICATORS = str(ROOT / "tests/python/mpi")
STARTERS = str(ROOT / "tests/python/mpirun")
# Enough to be split into two worlds of several ranks each.
RANKS_TO_PART = "4"


def environment(prefix: Path, library: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PERSEUS_MPI_LIBRARY": str(library),
        "MPI4PY_LIBMPI": str(library),
        # Containers run tests as root, and machines have fewer cores than the tests have ranks.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        **more,
    }


def commands(
    prefix: Path, library: Path, suite: list[str], with_data: bool
) -> list[tuple[str, list[str], dict[str, str]]]:
    """Returns what to run: titles, commands, environments.

    Args:
      suite: the parallel tests that move their data over MPI.
      with_data: whether data is moved over this MPI in Python, too, and programs start an mpirun.
    """
    found = environment(prefix, library, **python_tests.QUICK_GC)
    mpirun = [str(prefix / "bin/mpirun"), "-np", RANKS]
    mpirun_parted = [str(prefix / "bin/mpirun"), "-np", RANKS_TO_PART]
    perseusrun = [sys.executable, "-m", "perseus.run", "-np", RANKS, "--mpi"]
    over_mpi = {**found, "PERSEUS_TRANSPORT": "mpi"}
    listed = [
        ("mpirun", [*mpirun, *PYTEST, *WORLDS], found),
        ("perseusrun --mpi", [*perseusrun, *PYTEST, *WORLDS], found),
        ("communicators", [*mpirun_parted, *PYTEST, COMMUNICATORS], found),
    ]
    if with_data:
        listed += [
            ("mpirun, data over MPI", [*mpirun, *PYTEST, *suite], over_mpi),
            ("communicators, data over MPI", [*mpirun_parted, *PYTEST, COMMUNICATORS], over_mpi),
            ("programs under mpirun", [*PYTEST, STARTERS], found),
        ]
    else:  # the test that is about MPICH's launcher
        listed.append(("children of ranks", [*PYTEST, f"{STARTERS}/test_children.py"], found))
    if toolchain.load().googletest:
        program = str(cpp_build.folder("") / "tests/cpp/real_mpi/real_mpi_test")
        listed.insert(
            0, ("C++", [str(ROOT / "tests/cpp/real_mpi/run.sh"), program, str(prefix)], found)
        )
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="run all tests with each MPI")
    run_all = parser.parse_args().all
    suite = [SUITE] if run_all else WORLDS
    results = []
    if toolchain.load().googletest:
        cpp_build.build("", ["real_mpi_test"], quiet=True)
    for name, soname in (("openmpi", "libmpi.so.40"), ("mpich", "libmpi.so.12")):
        prefix = ROOT / "build" / name
        listed = commands(
            prefix, prefix / "lib" / soname, suite, with_data=run_all or name == "openmpi"
        )
        for what, command, variables in listed:
            print(f"== {name}: {what}", flush=True)
            began = time.monotonic()
            status = subprocess.run(
                command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL
            ).returncode
            results.append((f"{name}: {what}", status, time.monotonic() - began))
    print("== MPI tests")
    for title, status, seconds in results:
        outcome = f"FAILED ({status})" if status else "passed"
        print(f"   {title:37} {outcome:10} {seconds:6.1f} s")
    sys.exit(any(status for _, status, _ in results))


if __name__ == "__main__":
    main()
