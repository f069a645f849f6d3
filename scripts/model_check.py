"""model_check.py [--whole]: has spin check every run of tests/model/agreement.pml.

Without --whole it takes seconds, for CI. With --whole it takes ten minutes, and checks as much as
fits into memory. Some models contain a fault on purpose; if spin does not find it, the check fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import debian
import test_results

MODEL = debian.ROOT / "tests/model/agreement.pml"
STACK = 1_000_000
MEMORY_MB = 16_000


@dataclass(frozen=True)
class Case:
    """The number of ranks and names, and how many ranks die or shut down, at any moment."""

    ranks: int
    names: int
    deaths: int
    leaves: int
    #: an operation completes with the data of one rank, not of all
    broadcast: bool = False
    #: a macro that injects a fault, and the error that spin reports for it
    fault: str = ""
    found: str = ""
    #: whether spin keeps hashes of states, because the states do not fit into memory
    hashed: bool = False

    def text(self) -> str:
        parts = [f"{self.ranks} ranks", f"{self.names} name{'s' * (self.names > 1)}"]
        for count, what in ((self.deaths, "death"), (self.leaves, "shutdown")):
            if count:
                parts.append(f"{count} {what}{'s' * (count > 1)}")
        if self.broadcast:
            parts.append("broadcasts")
        if self.fault:
            parts.append(f"with the fault {self.fault}")
        return ", ".join(parts)

    def macros(self) -> list[str]:
        values = {"N": self.ranks, "NAMES": self.names}
        values |= {"CRASHES": self.deaths, "LEAVES": self.leaves}
        macros = [f"-D{name}={value}" for name, value in values.items()]
        macros += ["-DBROADCAST"] * self.broadcast
        return [*macros, f"-D{self.fault}"] if self.fault else macros

    def optimization(self) -> str:
        """Returns the level at which compiling and searching together take least: -O2 takes 13 s
        to compile, -O1 3 s and -O0 1 s, and a fault is found at once."""
        if self.fault:
            return "-O0"
        return "-O2" if self in WHOLE else "-O1"


QUICK = (
    Case(3, 1, 1, leaves=1),
    Case(3, 2, 0, leaves=1),
    Case(3, 2, 1, leaves=0),
    Case(4, 1, 1, leaves=0),
    Case(3, 1, 1, leaves=1, broadcast=True),
    Case(3, 2, 0, leaves=1, broadcast=True),
    Case(3, 1, 0, leaves=1, fault="NEUTRAL_AFTER_END", found="neutral"),
    Case(3, 1, 0, leaves=1, broadcast=True, fault="NEUTRAL_BEYOND_LAST_ROUND", found="neutral"),
    Case(3, 1, 0, leaves=1, fault="LEAVER_IS_WAITED_FOR", found="running"),
    Case(3, 1, 1, leaves=0, fault="DEATH_IS_NOT_TOLD", found="pending==0"),
    Case(3, 2, 0, leaves=0, fault="ANY_HOP_WILL_DO", found="completed_rounds"),
)
WHOLE = (
    Case(3, 1, 1, leaves=3),
    Case(3, 2, 1, leaves=1),
    Case(4, 1, 1, leaves=1),
    Case(3, 1, 1, leaves=3, broadcast=True),
    Case(4, 1, 1, leaves=1, broadcast=True),
    Case(4, 2, 0, leaves=0),
    Case(4, 2, 1, leaves=0, hashed=True),
)


def run(command: list[str], folder: Path) -> str:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"make: {' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def check(case: Case) -> tuple[str, bool, float]:
    """Returns the case, whether spin found nothing but the injected fault, and the seconds taken.
    Prints a line."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="model-") as name:
        folder = Path(name)
        run(["spin", "-a", *case.macros(), str(MODEL)], folder)
        flags = ["-DSAFETY", "-DVECTORSZ=2048", f"-DMEMLIM={MEMORY_MB}"]
        flags += ["-DBITSTATE"] if case.hashed else ["-DCOLLAPSE"]
        run(["cc", case.optimization(), "-w", *flags, "-o", "pan", "pan.c"], folder)
        search = ["./pan", f"-m{STACK}", *(["-w34"] if case.hashed else [])]
        output = subprocess.run(search, cwd=folder, capture_output=True, text=True).stdout
    errors = re.search(r"errors: (\d+)", output)
    states = re.search(r"(\S+) states, stored", output)
    what = re.search(r"pan:\d+: (.*)", output)
    if not errors or not states:
        result, good = f"pan failed: {output.strip()[-300:]}", False
    elif case.fault:
        good = what is not None and case.found in what[1]
        result = f"found: {what[1]}" if what else "NOT FOUND"
    else:
        whole = "max search depth too small" not in output and "out of memory" not in output
        good = whole and int(errors[1]) == 0
        result = what[1] if what else "holds" if whole else "NOT LOOKED AT AS A WHOLE"
    count = f"{float(states[1]):,.0f} states" if states else ""
    print(f"{case.text():82} {count:>22} {time.monotonic() - began:6.0f} s  {result}", flush=True)
    return case.text(), good, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whole", action="store_true", help="check what fits into memory")
    args = parser.parse_args()
    if not shutil.which("spin"):
        prefix = debian.fetch(["spin"])
        if prefix is None:
            return debian.skipped("model check", "spin is missing and could not be fetched")
        os.environ["PATH"] += f":{prefix}/bin"
    cases = QUICK + WHOLE if args.whole else QUICK
    # Most of the time goes to the compiler; with --whole, the cases need all of the memory.
    with ThreadPoolExecutor(1 if args.whole else os.cpu_count()) as pool:
        checks = list(pool.map(check, cases))
    test_results.write(test_results.of_checks(checks))
    return 0 if all(good for _, good, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
