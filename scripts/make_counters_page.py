"""make_counters_page.py [--check]: writes the tables of docs/counters.md from that of the engine.

Run with a Python that has perseus_core, whose counters must be those of the table. With --check it
writes nothing, and fails if the page is out of date.
"""

from __future__ import annotations

import re
import sys

from generated_page import ROOT, parse_arguments, table, update

from perseus_core import counters

PAGE = ROOT / "docs/counters.md"
SOURCE = ROOT / "csrc/observe/counters_table.inc"
#: A row: its macro, its name, and its help, which may be several string literals.
ROW = re.compile(r'^(\w*COUNTER)\((\w+),\s*((?:"[^"]*"\s*)+)\)$', re.M)


def rows(macro: str) -> list[tuple[str, str]]:
    """Returns the name and help of each row that is written with this macro."""
    found = ROW.findall(SOURCE.read_text())
    return [
        (name, "".join(re.findall(r'"([^"]*)"', text)))
        for kind, name, text in found
        if kind == macro
    ]


def check_names() -> None:
    """Fails unless the table has the counters of the engine that is installed, in its order."""
    listed = [name for macro in ("COUNTER", "MESH_COUNTER") for name, _ in rows(macro)]
    if listed != list(counters()):
        sys.exit(
            f"make_counters_page.py: {SOURCE} lists {listed}, the engine {list(counters())}; "
            "build it again"
        )


def section(macro: str) -> str:
    return table("| counter | counts |", [f"| `{name}` | {text} |" for name, text in rows(macro)])


if __name__ == "__main__":
    args = parse_arguments(__doc__)
    check_names()
    sections = {"counters": section("COUNTER"), "links": section("MESH_COUNTER")}
    update(PAGE, sections, check=args.check)
