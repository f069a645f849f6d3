"""fuzz.py [SECONDS] [NAME...]: fuzzes parsers and state machines, those in C++ with sanitizers.

The programs of tests/fuzz run for SECONDS each (10), one a core, and start from the corpus in
tests/fuzz/corpus. Those in Python run under atheris, which is libFuzzer for Python. The inputs that
they find on the way stay in build/fuzz/corpus, and the next run starts from them. A finding is kept
in build/fuzz/findings, and fails the run. --merge copies the inputs that add to the coverage into
the tree's corpus, as few of them as can be for the state machines, whose inputs take longest.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import cpp_build
import debian
import test_results

SOURCES = debian.ROOT / "tests/fuzz"
CORPUS = SOURCES / "corpus"
BUILD = debian.ROOT / "build/fuzz"
#: One input takes microseconds, or milliseconds if it is a sequence of steps; one that takes as
#: long as this hangs.
HANGS_AFTER = 10
LONGEST_INPUT = 4096
#: Programs whose input is a sequence of steps against an object with states.
STATE_MACHINES = {
    *("acceptor_fuzz", "agent_acceptor_fuzz", "agent_fuzz"),
    *("rendezvous_server_fuzz", "tampered_link_fuzz"),
}
LONGEST_SEQUENCE = 512
#: AddressSanitizer keeps a quarter of this to itself.
MOST_MEMORY_MIB = 1024


def is_python(name: str) -> bool:
    return (SOURCES / f"{name}.py").exists()


def program(name: str) -> list[str]:
    if is_python(name):
        return [sys.executable, str(SOURCES / f"{name}.py")]
    return [str(cpp_build.folder("address") / "tests/fuzz" / name)]


def fuzz(name: str, seconds: int) -> tuple[str, bool, float]:
    """Returns the name, whether nothing was found, and the seconds taken; prints a line."""
    found, findings = BUILD / "corpus" / name, BUILD / "findings" / name
    for folder in (found, findings):
        folder.mkdir(parents=True, exist_ok=True)
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    command = [*program(name), str(found), str(CORPUS / name)]
    command += [f"-max_total_time={seconds}", f"-timeout={HANGS_AFTER}"]
    command += [f"-rss_limit_mb={MOST_MEMORY_MIB}", f"-artifact_prefix={findings}/"]
    # Few sequences run in a second, so none is spent on short ones first.
    length = [f"-max_len={LONGEST_SEQUENCE}", "-len_control=0"]
    command += length if name in STATE_MACHINES else [f"-max_len={LONGEST_INPUT}"]
    command += ["-print_final_stats=1"]
    began = time.monotonic()
    log = BUILD / f"{name}.log"
    with log.open("wb") as output:  # atheris writes the traceback to stdout
        result = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT)
    said = log.read_text(errors="replace")
    runs = re.search(r"number_of_executed_units: (\d+)", said)
    coverage = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", said)
    covered, features, inputs = coverage[-1] if coverage else ("?",) * 3
    text = "nothing" if result.returncode == 0 else f"FOUND: see {log} and {findings}"
    print(
        f"{name:22} {int(runs[1]) if runs else 0:>14,} runs {time.monotonic() - began:7.0f} s "
        f"{covered:>6} edges {features:>6} features {inputs:>6} inputs  {text}",
        flush=True,
    )
    return name, result.returncode == 0, time.monotonic() - began


def restartable_program(name: str) -> list[str]:
    """Returns a program that libFuzzer can start anew by its first argument, as it does to merge.

    That would be the file in Python, which is no executable.
    """
    if not is_python(name):
        return program(name)
    script, source = BUILD / f"{name}.sh", str(SOURCES / f"{name}.py")
    run = f"import sys; sys.argv[0] = {str(script)!r}; "
    run += f"exec(compile(open({source!r}).read(), {source!r}, 'exec'))"
    script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", run])} "$@"\n')
    script.chmod(0o755)
    return [str(script)]


def merge(name: str) -> None:
    target = CORPUS / name
    target.mkdir(parents=True, exist_ok=True)
    how = "-set_cover_merge=1" if name in STATE_MACHINES else "-merge=1"
    command = [*restartable_program(name), how, str(target), str(BUILD / "corpus" / name)]
    subprocess.run(command, capture_output=True, check=True)
    print(f"{name:22} {len(list(target.iterdir())):>6} inputs in the tree", flush=True)


def main() -> int:
    every = sorted(file.stem for file in SOURCES.glob("*_fuzz.*"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seconds", nargs="?", type=int, default=10)
    parser.add_argument("names", nargs="*", help=f"programs among {', '.join(every)}")
    parser.add_argument(
        "--merge", action="store_true", help="copy inputs that add to the coverage into the corpus"
    )
    args = parser.parse_args()
    if unknown := set(args.names) - set(every):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    names = args.names or every
    os.environ["PYTHONPATH"] = str(debian.ROOT)  # for the programs in Python
    status = 0
    compiled = [name for name in names if not is_python(name)]
    if compiled and cpp_build.fuzzing_compiler():
        cpp_build.build("address", compiled, quiet=True)
    elif compiled:
        status = debian.skipped("fuzzing of C++", "clang++ with libFuzzer is not to be had")
        names = [name for name in names if is_python(name)]
    if args.merge:
        for name in names:
            merge(name)
        return 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checks = list(pool.map(lambda name: fuzz(name, args.seconds), names))
    test_results.write(test_results.of_checks(checks))
    return status if all(clean for _, clean, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
