"""make_settings_page.py [--check]: writes docs/settings.md from the engine's table of settings.

Run by a Python that has perseus_core. With --check it writes nothing, and fails if the page is not
what it would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from perseus_core import Setting, settings

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/settings.md"
IGNORED = ROOT / "csrc/base/foreign_variables.cc"

HEAD = """\
# Settings

<!-- Written by scripts/make_settings_page.py from csrc/base/settings_table.inc. -->

Settings are environment variables, read by `init`. `perseusrun --help` shows the same table, and
`perseus_core.settings()` the values in force. A value that is malformed or out of range makes
`init` fail, naming the variable and its range; a mistyped name is warned of.

Horovod's names set what they correspond to; where both are set, the `PERSEUS_` name wins. A number
of Horovod's that is out of range here is taken as the nearest that is in range, with a warning.

What decides plans and algorithms must be the same on every rank. `init` compares it, and fails on
every rank, naming the setting and two ranks, if it is not.

| variable | value | default | what it does |
|---|---|---|---|
"""

FOOT = """
## Horovod's variables without meaning here

Setting one of them changes nothing; at log level `info`, `init` says so.

| variable | why |
|---|---|
"""


def page() -> str:
    rows = "".join(row(setting) for setting in settings())
    ignored = "".join(f"| `{name}` | {why} |\n" for name, why in ignored_variables())
    return HEAD + rows + FOOT + ignored


def row(setting: Setting) -> str:
    default = f"`{setting.default}`" if setting.default else "empty"
    # A choice or a switch says by its values what it is.
    is_listed = setting.type in ("choice", "bool")
    value = setting.range if is_listed else ", ".join(filter(None, (setting.type, setting.range)))
    others = ", ".join(map(alias, setting.aliases))
    text = f"{setting.help} Also: {others}." if others else setting.help
    return f"| `{setting.name}` | {value} | {default} | {text} |\n"


def alias(text: str) -> str:
    """`NAME` or `NAME` (in bytes), from "NAME" or "NAME (bytes)"."""
    name, _, how = text.partition(" ")
    return f"`{name}` {how}".rstrip()


def ignored_variables() -> list[tuple[str, str]]:
    """Name and reason of each row of ignored_variables(), which perseus.h does not give out."""
    source = IGNORED.read_text()
    reasons = dict(re.findall(r'const char\* const (k\w+)\s*=\s*"([^"]+)"', source))
    rows = re.findall(r'\{"(HOROVOD_\w+)",\s*(?:"([^"]+)"|(k\w+))\}', source)
    if not rows:
        sys.exit(f"make_settings_page.py: no variables were found in {IGNORED}")
    return [(name, text or reasons[constant]) for name, text, constant in rows]


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit(f"{PAGE} is out of date; run scripts/make_settings_page.py")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
