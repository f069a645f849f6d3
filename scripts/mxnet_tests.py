"""mxnet_tests.py [--all-ranks] N...: runs the MXNet adapter's tests in N processes, for each N.

Without --all-ranks, python_tests.ONLY_AT leaves out some N.

It makes an environment of their own, build/mxnet, since MXNet 1.9 needs a NumPy that is older than
the other tests' and that does not exist for Python after 3.11.
"""

from __future__ import annotations

import argparse
import functools
import sys

import debian
import environment
import python_tests

NEWEST_PYTHON = (3, 11)
# MXNet itself causes these warnings, with every NumPy that it accepts.
OPTIONS = ["-W", "ignore"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="+", type=int, metavar="N")
    parser.add_argument("--all-ranks", action="store_true", help="run all files at each N")
    args = parser.parse_args()
    if sys.version_info[:2] > NEWEST_PYTHON:
        why = "MXNet 1.9 takes NumPy < 1.24, and so Python 3.11 or older"
        sys.exit(debian.skipped("the tests of MXNet", why))
    python = str(environment.of_the_tree("mxnet"))
    jobs = functools.partial(python_tests.alone, "mxnet_jobs", *OPTIONS, python=python)
    signatures = functools.partial(
        python_tests.alone,
        "unit/test_horovod_signatures.py",
        *OPTIONS,
        "-k",
        "horovod.mxnet",
        python=python,
    )
    python_tests.run(
        "MXNet",
        [
            ("signatures", signatures),
            ("jobs", jobs),
            *python_tests.of_ranks(
                "mxnet_adapter", args.ranks, *OPTIONS, python=python, all_files=args.all_ranks
            ),
        ],
    )


if __name__ == "__main__":
    main()
