"""abi.py [--update]: compares the binary interface of libperseus with the recorded one.

The record, csrc/capi/abi.txt, holds what a program was compiled with: the functions, each with the
release since which the library has it (from csrc/capi/exports.map), all that perseus.h declares,
its numbers, and where each field of its structures lies. A compatible change adds lines, or fields
at the end of a structure. A change that alters or removes another line needs a new minor release,
as long as the major one is 0. Run it with the environment's Python, after make build; --update
writes the record.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from debian import ROOT

from perseus import config

RECORD = ROOT / "csrc/capi/abi.txt"
HEADER = ROOT / "csrc/include/perseus/perseus.h"
MAP = ROOT / "csrc/capi/exports.map"

HEAD = """\
# The binary interface of libperseus, on x86-64. Written by scripts/abi.py.
"""


def header() -> str:
    """Returns the header without comments, and without the enumerations' names, which programs that
    are compiled do not depend on."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    return re.sub(r"^enum \w+ \{", "enum {", text, flags=re.MULTILINE)


def declared_functions() -> set[str]:
    return set(re.findall(r"PERSEUS_API [^;(]*?\b(perseus_\w+)\(", header()))


def mapped_functions() -> set[str]:
    return set(re.findall(r"^ +(perseus_\w+);$", MAP.read_text(), re.MULTILINE))


def library() -> Path:
    (found,) = config.library_dir().glob("libperseus.so.*")
    return found


def exported() -> list[str]:
    """Returns the exported symbols with versions, except the names of the versions themselves."""
    command = ["nm", "-D", "--defined-only", str(library())]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    entries = [line.split()[-2:] for line in result.stdout.splitlines()]
    return sorted(name for kind, name in entries if kind != "A")


def declarations() -> list[str]:
    """Returns the header's types, constants and functions as they are written, a line each."""
    text = re.sub(r"^#(?:if|endif|else|include|ifndef).*$", "", header(), flags=re.MULTILINE)
    macros = re.findall(r"^#define +(PERSEUS_(?!VERSION|API|PERSEUS)\w+ .*)$", text, re.MULTILINE)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\s+", " ", text.replace('extern "C" {', "").replace("PERSEUS_API ", ""))
    found, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "{(") - (char in "})")
        if char == ";" and depth == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
    return [*macros, *found]


def structures() -> dict[str, list[str]]:
    """Returns the fields of each structure."""
    found = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (perseus_\w+);", header(), re.DOTALL):
        fields = [field for field in re.split(r";(?![^(]*\))", body) if field.strip()]
        found[name] = [_field_name(field) for field in fields]
    return found


def _field_name(declaration: str) -> str:
    pointer = re.search(r"\(\*(\w+)\)", declaration)
    return pointer[1] if pointer else re.findall(r"\w+", declaration)[-1]


def constants() -> list[str]:
    text = header()
    of_enums = [
        name
        for body in re.findall(r"enum \{(.*?)\};", text, re.DOTALL)
        for name in re.findall(r"(PERSEUS_\w+) =", body)
    ]
    defined = re.findall(r"^#define (PERSEUS_(?!VERSION|API|PERSEUS)\w+) \S", text, re.MULTILINE)
    return [*of_enums, *(name for name in defined if name != "PERSEUS_NO_STREAM")]


def numbers() -> list[str]:
    """Returns constants, sizes and offsets, as a C compiler computes them."""
    lines = [f'P("{name} %lld\\n", (long long){name});' for name in constants()]
    for structure, fields in structures().items():
        lines.append(f'P("{structure}: %zu bytes\\n", sizeof({structure}));')
        lines += [
            f'P("{structure}.{field} at %zu\\n", offsetof({structure}, {field}));'
            for field in fields
        ]
    program = "#include <stdio.h>\n#include <perseus/perseus.h>\n#define P printf\n"
    program += "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "abi.c", Path(folder) / "abi"
        source.write_text(program)
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-std=c99", f"-I{HEADER.parents[1]}", str(source), "-o", str(binary)]
        subprocess.run(command, check=True)
        return subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )[:-1]


def interface() -> str:
    return HEAD + "\n".join([*exported(), "", *declarations(), "", *numbers()]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the record")
    args = parser.parse_args()
    present = interface()
    if args.update:
        RECORD.write_text(present)
    if differs := sorted(declared_functions() ^ mapped_functions()):
        sys.exit(f"abi: perseus.h and {MAP.name} differ in {', '.join(differs)}")
    recorded = RECORD.read_text()
    if present != recorded:
        lines = difflib.unified_diff(
            recorded.splitlines(), present.splitlines(), "recorded", "present", lineterm="", n=0
        )
        sys.exit("\n".join([*lines, "abi: if this is meant, run scripts/abi.py --update"]))
    print(f"abi: {len(exported())} functions, {len(structures())} structures, as recorded")


if __name__ == "__main__":
    main()
