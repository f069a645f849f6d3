"""check_release.py TAG [--notes FILE]: checks that this tree is ready to be released under a tag.

The tag must be v and the version in perseus.h, and CHANGELOG.md must have a section for it, with
the day of the release. --notes writes that section into a file.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from debian import ROOT

HEADER = ROOT / "csrc/include/perseus/perseus.h"
CHANGELOG = ROOT / "CHANGELOG.md"


def version(header: str) -> str:
    numbers = dict(re.findall(r"^#define PERSEUS_VERSION_(\w+) (\d+)$", header, re.M))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))


def faults(tag: str, header: str, changelog: str) -> list[str]:
    """Returns what keeps the tree from being released under this tag."""
    found = []
    if tag != f"v{version(header)}":
        found.append(f"the tag is {tag}; it must be v{version(header)}, after {HEADER.name}")
    heading = rf"^## \[{re.escape(version(header))}\](.*)$"
    section = re.search(heading, changelog, re.M)
    if section is None:
        found.append(f"{CHANGELOG.name} has no section [{version(header)}]")
    elif not re.fullmatch(r" - \d{4}-\d\d-\d\d", section[1]):
        found.append(
            f"the heading is {section[0]!r}; it must end in the day of the release, ' - YYYY-MM-DD'"
        )
    elif not notes(version(header), changelog):
        found.append(f"the section [{version(header)}] of {CHANGELOG.name} is empty")
    return found


def notes(of_version: str, changelog: str) -> str:
    """Returns the text of a version's section."""
    _, _, rest = changelog.partition(f"\n## [{of_version}]")
    return re.split(r"^## ", rest.partition("\n")[2], flags=re.M)[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tag", metavar="TAG", help="such as v0.1.0")
    parser.add_argument("--notes", type=Path, metavar="FILE", help="write the changelog's section")
    args = parser.parse_args()
    header, changelog = HEADER.read_text(), CHANGELOG.read_text()
    if found := faults(args.tag, header, changelog):
        sys.exit("\n".join(found))
    if args.notes:
        args.notes.write_text(notes(version(header), changelog) + "\n")


if __name__ == "__main__":
    main()
