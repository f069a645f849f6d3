"""Reports measurements as a table, as JSON and as plots."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from contest import core_distance
from contest.conductor import Times

ROOT = Path(__file__).resolve().parents[2]
#: Suffix of the commit's name where tracked files have changes.
DIRTY = "-dirty"
Case = Mapping[str, int | str]


def add_arguments(parser: argparse.ArgumentParser, *, plot: bool = True) -> None:
    parser.add_argument("--quick", action="store_true", help="a short run: rough figures")
    parser.add_argument("--json", type=_output_file, metavar="FILE", help="write the figures there")
    if plot:
        parser.add_argument(
            "--plot", type=_plot_file, metavar="FILE", help="draw them there (.svg, .png)"
        )


def _output_file(text: str) -> Path:
    """Returns the path of a writable file, as far as that can be checked before an hour of work."""
    file = Path(text)
    plain = file.is_file() or not file.exists()
    places = [file, file.parent] if file.exists() else [file.parent]
    if not plain or not all(os.access(place, os.W_OK) for place in places):
        raise argparse.ArgumentTypeError(f"{file} cannot be written")
    return file


def _plot_file(text: str) -> Path:
    file = _output_file(text)
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("it needs matplotlib: make env-benchmarks")
    if file.suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"{file} ends neither in .svg nor in .png")
    return file


def bytes_text(count: int) -> str:
    """65536 -> "64 KiB"."""
    value = count
    for unit in ("B", "KiB", "MiB"):
        if value < 1024 or value % 1024:
            return f"{value} {unit}"
        value //= 1024
    return f"{value} GiB"


def time_text(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    if microseconds < 1000:
        return f"{microseconds:.1f} us"
    return f"{microseconds / 1000:.{2 if microseconds < 1e5 else 0}f} ms"


@dataclass
class Report:
    """Rows of one program's run; other contenders are compared to the first one of each case.

    value_text: formats a value, if it is not a time in microseconds.
    file: save writes the rows there, together with `also`. whole: the report this is a section of.
    environment: the virtual environment of the contenders, if it is not this program's.
    """

    program: str
    value_text: Callable[[float | None], str] = time_text
    file: Path | None = None
    also: dict[str, Any] = field(default_factory=dict)
    whole: Report | None = None
    environment: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Taken now: the tree that is measured may change during the run.
        self._machine = machine(self.environment) if self.file else {}
        self._distance_at_start = core_distance.look() if self.file else None
        if self.file and self._machine["versions"]["perseus"].endswith(DIRTY):
            print(
                f"WARNING: tracked files differ from the commit: {self.file} will not say what was "
                "measured",
                file=sys.stderr,
                flush=True,
            )

    def add(self, case: Case, times: Mapping[str, Times]) -> None:
        """Adds one measurement of some contenders."""
        first = next(iter(times.values())).median
        for label, of_contender in times.items():
            median = of_contender.median
            self.rows.append(
                {
                    **case,
                    "contender": label,
                    "median": median,
                    "p10": of_contender.percentile(10),
                    "p90": of_contender.percentile(90),
                    "ratio": median / first if median and first else None,
                    "iterations": len(of_contender.microseconds),
                    "reason": of_contender.reason,
                    "core_distances": of_contender.core_distances,
                    **({"note": of_contender.note} if of_contender.note else {}),
                }
            )

    def print_case(self, case: Case) -> None:
        """Prints the lines of one case."""
        rows = [row for row in self.rows if all(row[key] == case[key] for key in case)]
        print(_case_text(case))
        for said in dict.fromkeys(core_distance.text(*row["core_distances"]) for row in rows):
            if said:
                print(f"  {said}")
        for row in rows:
            if row["median"] is None:
                print(f"  {row['contender']:24} {textwrap.shorten(str(row['reason']), 120)}")
                continue
            spread = f"{self.value_text(row['p10'])} .. {self.value_text(row['p90'])}"
            ratio = f"{row['ratio']:.3g}x" if row["ratio"] else ""
            words = "".join(f"  {row[key]}" for key in ("note", "reason") if row.get(key))
            median = self.value_text(row["median"])
            print(f"  {row['contender']:24} {median:>11}  {spread:25} {ratio:>8}{words}")
        sys.stdout.flush()

    def section(self, name: str, value_text: Callable[[float | None], str] = time_text) -> Report:
        """Returns a report for other rows in the same file."""
        made = Report(self.program, value_text, whole=self)
        self.also[name] = made.rows
        return made

    def content(self) -> dict[str, Any]:
        """Returns what the file holds, of a run that has not finished."""
        return {
            "program": self.program,
            "command": ["python", f"benchmarks/{self.program}.py", *sys.argv[1:]],
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "finished": False,
            "machine": self._machine,
            **self.also,
            "rows": self.rows,
        }

    def save(self, *, finished: bool = False) -> None:
        """Called after each case and at the end, so that an interrupted run keeps its
        measurements."""
        if self.whole is not None:
            self.whole.save(finished=finished)
        if self.file is None:
            return
        distances = [self._distance_at_start, core_distance.look()]
        content = {**self.content(), "core_distances": distances, "finished": finished}
        whole = self.file.resolve()
        part = whole.with_name(f".{whole.name}.part")
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(whole)


def _case_text(case: Case) -> str:
    parts = []
    for key, value in case.items():
        if key == "bytes":
            parts.append(bytes_text(int(value)))
        elif isinstance(value, int):
            parts.append(f"{value} {key}")
        else:
            parts.append(value)
    return ", ".join(parts)


def machine(environment: Path | None = None) -> dict[str, Any]:
    path = sys.path
    if environment is not None:
        path = [str(folder) for folder in environment.glob("lib/*/site-packages")]
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "kernel": platform.release(),
        "versions": {
            "python": platform.python_version(),
            "perseus": _commit(),
            **{name: _version(name, path) for name in ("torch", "numpy", "mxnet")},
            "tensorflow": _version("tensorflow", path) or _version("tensorflow-cpu", path),
        },
    }


def _commit() -> str:
    """Returns its name, marked if tracked files differ, except results, which a run itself
    writes."""
    git = ["git", "-C", str(ROOT)]
    done = subprocess.run([*git, "describe", "--always"], capture_output=True, text=True)
    if done.returncode:
        return "unknown"
    changes = [*git, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)benchmarks/results"]
    differs = subprocess.run(changes).returncode
    return done.stdout.strip() + (DIRTY if differs else "")


def _version(name: str, path: list[str]) -> str | None:
    return next((found.version for found in metadata.distributions(name=name, path=path)), None)
