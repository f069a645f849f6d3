"""make_programs_page.py [--check]: writes the table of docs/programs.md from what was recorded.

`make programs` records what it finds in tests/programs/results.json. With --check it writes
nothing, and fails if the page is not what it would write.
"""

from __future__ import annotations

import json
from typing import Any

from generated_page import ROOT, parse_arguments, table, update

PAGE = ROOT / "docs/programs.md"
RESULTS = ROOT / "tests/programs/results.json"
COLUMNS = (
    "| program | versions | started by | ranks | result | with one process | weights differ by "
    "| day |"
)


def row(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    launcher = result["launcher"]
    found, alone, difference = result["problem"], "", ""
    if not found:
        found = f"{result['figure']} {result['value']:.3f}"
        alone = f"{result['value_alone']:.3f}"
        drawn = result["difference"]
        difference = "other data" if drawn is None else f"{drawn:.0e}" if drawn else "0"
    cells = [result["title"], versions, launcher, result["ranks"], found, alone, difference]
    return f"| {' | '.join(map(str, [*cells, result['day']]))} |"


def main() -> None:
    args = parse_arguments(__doc__)
    results = json.loads(RESULTS.read_text())
    update(PAGE, {"results": table(COLUMNS, list(map(row, results)))}, check=args.check)


if __name__ == "__main__":
    main()
