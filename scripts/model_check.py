"""model_check.py [--whole]: has spin check every run of the models in tests/model.

agreement.pml models how ranks agree on operations, and elastic.pml how an elastic job goes from
world to world. Without --whole it takes a minute or two, for CI. With --whole it takes half an
hour, and checks as much as fits into memory. Some models contain a fault on purpose; if spin does
not find it, the check fails.
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
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import debian
import test_results

MODELS = debian.ROOT / "tests/model"
STACK = 1_000_000
MEMORY_MB = 16_000


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """One search of one of the models."""

    #: a macro that injects a fault, and the error that spin reports for it
    fault: str = ""
    found: str = ""
    #: whether spin keeps hashes of states, because the states do not fit into memory
    hashed: bool = False

    @property
    @abstractmethod
    def model(self) -> Path: ...

    @abstractmethod
    def parts(self) -> list[str]:
        """Returns the words that tell it from others, without the fault."""

    @abstractmethod
    def values(self) -> dict[str, int]:
        """Returns the macros that have values."""

    def switches(self) -> list[str]:
        """Returns the macros that have none, without the fault."""
        return []

    def text(self) -> str:
        fault = [f"with the fault {self.fault}"] if self.fault else []
        return f"{self.model.stem}: {', '.join(self.parts() + fault)}"

    def macros(self) -> list[str]:
        macros = [f"-D{name}={value}" for name, value in self.values().items()]
        macros += [f"-D{name}" for name in self.switches()]
        return [*macros, f"-D{self.fault}"] if self.fault else macros

    def optimization(self) -> str:
        """Returns the level at which compiling and searching together take least: -O2 takes 13 s
        to compile, -O1 3 s and -O0 1 s, and a fault is found at once."""
        if self.fault:
            return "-O0"
        return "-O2" if self in WHOLE else "-O1"


@dataclass(frozen=True)
class Agreement(Case):
    """The number of ranks and names, and how many ranks die or shut down, at any moment."""

    ranks: int
    names: int
    deaths: int
    leaves: int
    #: an operation completes with the data of one rank, not of all
    broadcast: bool = False

    @property
    def model(self) -> Path:
        return MODELS / "agreement.pml"

    def parts(self) -> list[str]:
        parts = [f"{self.ranks} ranks", _count(self.names, "name")]
        parts += [_count(self.deaths, "death")] if self.deaths else []
        parts += [_count(self.leaves, "shutdown")] if self.leaves else []
        return parts + ["broadcasts"] * self.broadcast

    def values(self) -> dict[str, int]:
        values = {"N": self.ranks, "NAMES": self.names}
        return values | {"CRASHES": self.deaths, "LEAVES": self.leaves}

    def switches(self) -> list[str]:
        return ["BROADCAST"] * self.broadcast


@dataclass(frozen=True)
class Elastic(Case):
    """The number of ranks at first, and how many die, lose their slots or join, at any moment."""

    ranks: int
    deaths: int
    leaves: int
    joins: int
    #: so many of the driver's time-outs come while the workers it waits for are only slow
    timeouts: int = 0
    #: how many steps the training has
    steps: int = 2
    #: the fewest ranks
    least: int = 1
    #: new ranks are waited for as soon as there is a slot for them
    at_once: bool = False
    #: ranks 0 and 1 share a host, which is not used any more once one of them has failed
    shared_host: bool = False
    #: there are no other slots than those at first, and those that are lost stay lost
    fixed_hosts: bool = False

    @property
    def model(self) -> Path:
        return MODELS / "elastic.pml"

    def parts(self) -> list[str]:
        events = {"death": self.deaths, "leave": self.leaves, "join": self.joins}
        events["early time-out"] = self.timeouts
        parts = [f"{self.ranks} ranks"]
        parts += [_count(count, what) for what, count in events.items() if count]
        parts += [f"at least {self.least}"] * (self.least > 1)
        parts += ["one step"] * (self.steps == 1)
        parts += ["at once"] * self.at_once + ["a shared host"] * self.shared_host
        return parts + ["fixed hosts"] * self.fixed_hosts

    def values(self) -> dict[str, int]:
        values = {"RANKS": self.ranks, "DEATHS": self.deaths, "LEAVES": self.leaves}
        values |= {"JOINS": self.joins, "TIMEOUTS": self.timeouts}
        return values | {"STEPS": self.steps, "LEAST": self.least}

    def switches(self) -> list[str]:
        switches = ["JOIN_AT_ONCE"] * self.at_once + ["SHARED_HOST"] * self.shared_host
        return switches + ["FIXED_HOSTS"] * self.fixed_hosts


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count > 1)}"


QUICK = (
    Agreement(3, 1, 1, leaves=1),
    Agreement(3, 2, 0, leaves=1),
    Agreement(3, 2, 1, leaves=0),
    Agreement(4, 1, 1, leaves=0),
    Agreement(3, 1, 1, leaves=1, broadcast=True),
    Agreement(3, 2, 0, leaves=1, broadcast=True),
    Agreement(3, 1, 0, leaves=1, fault="NEUTRAL_AFTER_END", found="neutral"),
    Agreement(
        3, 1, 0, leaves=1, broadcast=True, fault="NEUTRAL_BEYOND_LAST_ROUND", found="neutral"
    ),
    Agreement(3, 1, 0, leaves=1, fault="LEAVER_IS_WAITED_FOR", found="running"),
    Agreement(3, 1, 1, leaves=0, fault="DEATH_IS_NOT_TOLD", found="pending==0"),
    Agreement(3, 2, 0, leaves=0, fault="ANY_HOP_WILL_DO", found="completed_rounds"),
    Elastic(3, deaths=2, leaves=0, joins=0),
    Elastic(3, deaths=1, leaves=1, joins=0),
    Elastic(3, deaths=1, leaves=0, joins=1),
    Elastic(3, deaths=0, leaves=2, joins=0),
    Elastic(4, deaths=2, leaves=0, joins=0),
    Elastic(3, deaths=2, leaves=0, joins=0, timeouts=1),
    Elastic(3, deaths=2, leaves=0, joins=0, least=2),
    Elastic(2, deaths=1, leaves=0, joins=1, timeouts=1),
    Elastic(3, deaths=1, leaves=0, joins=1, at_once=True),
    Elastic(3, deaths=1, leaves=1, joins=0, shared_host=True),
    Elastic(2, deaths=0, leaves=2, joins=1),
    Elastic(1, deaths=1, leaves=1, joins=2),
    Elastic(3, deaths=2, leaves=0, joins=0, least=2, fixed_hosts=True),
    Elastic(3, deaths=2, leaves=0, joins=0, timeouts=1, fixed_hosts=True),
    Elastic(3, 1, 0, 0, fault="MEMBERS_ARE_NOT_WAITED_FOR", found="is_told_to_end"),
    Elastic(3, 0, 1, 0, fault="REFUSED_WORKER_ENDS_WORLD", found="lost!=0"),
    Elastic(3, 0, 2, 0, fault="FORMER_MEMBERS_COUNT", found="meeting<"),
    Elastic(3, 0, 0, 1, fault="CHANGE_IS_NOT_CARRIED", found="stopped"),
    Elastic(3, 1, 1, 0, fault="LOST_ARE_NOT_NEEDED", found="newest"),
    Elastic(3, 2, 0, 0, fault="MEETING_WAITS_FOR_DEAD", found="is_over"),
    Elastic(2, 1, 2, 1, fault="HEIRS_NEED_NO_STATE", found="violated yes"),
    Elastic(2, 1, 0, 1, timeouts=1, fault="STATE_IS_FORGOTTEN", found="has_state"),
    Elastic(3, 1, 0, 0, timeouts=1, fault="DEADLINE_OUTLIVES_JOB", found="has_finished"),
)
WHOLE = (
    Agreement(3, 1, 1, leaves=3),
    Agreement(3, 2, 1, leaves=1),
    Agreement(4, 1, 1, leaves=1),
    Agreement(3, 1, 1, leaves=3, broadcast=True),
    Agreement(4, 1, 1, leaves=1, broadcast=True),
    Agreement(4, 2, 0, leaves=0),
    Agreement(4, 2, 1, leaves=0, hashed=True),
    Elastic(2, deaths=1, leaves=2, joins=1),
    Elastic(3, deaths=1, leaves=1, joins=0, timeouts=1),
    Elastic(3, deaths=0, leaves=1, joins=1),
    Elastic(3, deaths=0, leaves=0, joins=2),
    Elastic(4, deaths=1, leaves=1, joins=0),
    Elastic(4, deaths=1, leaves=0, joins=1),
    Elastic(4, deaths=0, leaves=2, joins=0),
    Elastic(4, deaths=0, leaves=1, joins=1, hashed=True),
    Elastic(4, deaths=0, leaves=0, joins=2, steps=1, hashed=True),
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
        run(["spin", "-a", *case.macros(), str(case.model)], folder)
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
    print(f"{case.text():84} {count:>22} {time.monotonic() - began:6.0f} s  {result}", flush=True)
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
