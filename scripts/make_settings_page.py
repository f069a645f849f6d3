"""make_settings_page.py [--check]: writes the tables of docs/settings.md from those of the engine.

Run with a Python that has perseus_core. With --check it writes nothing, and fails if the page is
out of date.
"""

from __future__ import annotations

import re
import sys

from generated_page import ROOT, parse_arguments, table, update

from perseus_core import Setting, settings

PAGE = ROOT / "docs/settings.md"
IGNORED = ROOT / "csrc/base/unrecognized_variables.cc"


def row(setting: Setting) -> str:
    default = f"`{setting.default}`" if setting.default else "empty"
    # The values of a choice or a switch show its type.
    is_listed = setting.type in ("choice", "bool")
    value = setting.range if is_listed else ", ".join(filter(None, (setting.type, setting.range)))
    others = ", ".join(map(alias, setting.aliases))
    text = f"{setting.help} Also: {others}." if others else setting.help
    return f"| `{setting.name}` | {value} | {default} | {text} |"


def alias(text: str) -> str:
    """Returns `NAME` or `NAME` (in bytes), from "NAME" or "NAME (bytes)"."""
    name, _, how = text.partition(" ")
    return f"`{name}` {how}".rstrip()


def ignored_variables() -> list[tuple[str, str]]:
    """Returns the name and reason of each row of ignored_variables(), which perseus.h lacks."""
    source = IGNORED.read_text()
    reasons = dict(re.findall(r'const char\* const (k\w+)\s*=\s*"([^"]+)"', source))
    rows = re.findall(r'\{"(HOROVOD_\w+)",\s*(?:"([^"]+)"|(k\w+))\}', source)
    if not rows:
        sys.exit(f"make_settings_page.py: no variables were found in {IGNORED}")
    return [(name, text or reasons[constant]) for name, text, constant in rows]


if __name__ == "__main__":
    args = parse_arguments(__doc__)
    ignored = [f"| `{name}` | {why} |" for name, why in ignored_variables()]
    update(
        PAGE,
        {
            "settings": table(
                "| variable | value | default | what it does |", list(map(row, settings()))
            ),
            "ignored": table("| variable | why |", ignored),
        },
        check=args.check,
    )
