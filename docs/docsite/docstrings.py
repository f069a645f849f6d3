"""Turns docstrings into reStructuredText, which autodoc expects.

Docstrings are written to be read in the source: names of code stand between single backticks, and
an example is an indented paragraph. Napoleon handles their lists of arguments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: A heading that napoleon knows, such as "Args:".
HEADING = re.compile(r"[A-Z][\w ]*:$")
CODE = re.compile(r"(`+)(.+?)\1")
#: What means emphasis or a link to docutils: an asterisk, a name that ends in an underscore.
MARKUP = re.compile(r"\*|(?<=\w)_(?!\w)|\|")


def restructured(lines: list[str]) -> list[str]:
    """Returns the docstring with double backticks, and its examples as blocks of code."""
    result: list[str] = []
    heading = in_code = False
    for number, line in enumerate(lines):
        is_first = number == 0 or not lines[number - 1].strip()
        indented = line.startswith("  ")
        if line and not indented:
            heading, in_code = bool(HEADING.match(line)), False
        elif indented and is_first and not heading and not in_code:
            result += [".. code-block:: python", ""]
            in_code = True
        result.append(line if in_code else inline(line))
    return result


def inline(line: str) -> str:
    """Returns the line with code between double backticks, and everything else as plain text."""
    parts, end = [], 0
    for code in CODE.finditer(line):
        parts += [MARKUP.sub(r"\\\g<0>", line[end : code.start()]), f"``{code[2]}``"]
        end = code.end()
    return "".join([*parts, MARKUP.sub(r"\\\g<0>", line[end:])])


def _process(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    lines[:] = restructured(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    # Before napoleon, which reads what this writes.
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
