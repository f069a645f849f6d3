"""Draws the pictures of benchmarks/results/ from the measurements that are stored there.

python benchmarks/redraw.py [NAME...] [--check] [--results FOLDER]

NAME is that of a JSON file, such as latency; all if none is given. With --check nothing is written:
it exits with 1 if a picture is not what its measurements give. It needs matplotlib, as `make
pictures` installs it (requirements/benchmarks.txt), and measures nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from contest import ending, overview

RESULTS = Path(__file__).resolve().parent / "results"


def draw(content: dict[str, Any], file: Path) -> None:
    """Draws a result, by the program that has measured it."""
    importlib.import_module(content["program"]).draw(content, file)


def has_picture(content: dict[str, Any]) -> bool:
    """Returns whether the program draws it: gpu_check, for example, is none of benchmarks/."""
    program = Path(__file__).with_name(f"{content['program']}.py")
    draws = program.exists() and "\ndef draw(" in program.read_text()
    return draws and content.get("has_picture", True)


def draw_all(names: list[str], results: Path, folder: Path) -> None:
    for name in names:
        draw(json.loads((results / f"{name}.json").read_text()), folder / f"{name}.svg")
    if set(overview.FROM) <= set(names):
        overview.draw(results, folder / "overview.svg")


def differing(drawn: Path, stored: Path, whole: bool) -> list[str]:
    """Returns what is wrong with stored pictures. whole: all of them should have been drawn."""
    problems = []
    for file in sorted(drawn.iterdir()):
        there = stored / file.name
        if not there.exists():
            problems.append(f"{file.name} is missing")
        elif there.read_bytes() != file.read_bytes():
            problems.append(f"{file.name} is not what the measurements give")
    if whole:
        left = {file.name for file in stored.glob("*.svg")} - {
            file.name for file in drawn.iterdir()
        }
        problems += [f"{name} is drawn from no measurements" for name in sorted(left)]
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a result, such as latency")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one differs")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args()
    contents = {file.stem: json.loads(file.read_text()) for file in args.results.glob("*.json")}
    known = sorted(name for name, content in contents.items() if has_picture(content))
    for name in args.names:
        if name not in known:
            parser.error(f"NAME is {name}; it must be one of {', '.join(known)}")
    if not args.check:
        draw_all(args.names or known, args.results, args.results)
        return
    with tempfile.TemporaryDirectory() as folder:
        draw_all(args.names or known, args.results, Path(folder))
        problems = differing(Path(folder), args.results, whole=not args.names)
    if problems:
        sys.exit("\n".join([*problems, "make pictures draws them anew"]))


if __name__ == "__main__":
    with ending.by_exception():
        main()
