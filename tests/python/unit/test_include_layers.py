"""Checks that rooms of csrc include each other only along ARROWS, and declare which they need.

Linking does not catch a room that reaches up by a header alone, so every include is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

#: Room by room, from the foundation up: the rooms that it may include. `observe` calls nobody above
#: `base` and may be called from everywhere above that.
ARROWS: dict[str, set[str]] = {"base": set(), "observe": {"base"}}


def _add(room: str, *below: str) -> None:
    reachable = {"base", "observe", *below}
    for name in below:
        reachable |= ARROWS[name]
    ARROWS[room] = reachable


_add("device")
_add("codec", "device")
_add("mpi")
_add("bootstrap", "mpi")
_add("rollcall")
_add("transport", "bootstrap", "rollcall")
_add("collectives", "transport", "device", "codec")
_add("negotiation")
_add("schedule", "negotiation")
_add("state", "collectives", "negotiation", "schedule")
_add("watch", "state")
_add("execution", "state")
_add("messages", "state")
_add("engine", "watch", "execution", "messages")
_add("capi", "engine")

#: The engine as the rest of the world sees it. Only capi implements it; transport reads its
#: version, which ranks compare.
PUBLIC_HEADER = "perseus/perseus.h"
READS_PUBLIC_HEADER = {"transport", "capi"}

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hh", ".hpp", ".inc"}
SOURCES = re.compile(r"set\(SOURCES\s+([^)]*)\)")
NEEDS = re.compile(r"set\(NEEDS\s+([^)]*)\)")


def _sources(folder: Path) -> Iterator[Path]:
    yield from sorted(file for file in folder.rglob("*") if file.suffix in SUFFIXES)


def _includes(file: Path) -> list[str]:
    return INCLUDE.findall(file.read_text())


def _cmake(csrc: Path, room: str) -> str:
    """Returns what a room's sources.cmake says, without comments."""
    return re.sub(r"#.*", "", (csrc / room / "sources.cmake").read_text())


def _needs(cmake: str) -> set[str]:
    return set(" ".join(NEEDS.findall(cmake)).split())


def misplaced_includes(csrc: Path) -> list[str]:
    """Returns the includes that go against ARROWS, as readable lines."""
    found = []
    for room, below in ARROWS.items():
        for file in _sources(csrc / room):
            for included in _includes(file):
                place = included.partition("/")[0]
                where = f"{file.relative_to(csrc)} includes {included}"
                if ".." in included.split("/"):
                    found.append(f"{where}: paths begin at csrc")
                elif included == PUBLIC_HEADER:
                    if room not in READS_PUBLIC_HEADER:
                        found.append(f"{where}: only {sorted(READS_PUBLIC_HEADER)} may")
                elif place != room and place not in below and (csrc / included).exists():
                    found.append(f"{where}: {room} may include {sorted(below)}")
    return found


def unlisted_needs(csrc: Path) -> list[str]:
    """Returns rooms whose sources.cmake differs from what they include, or misses a source."""
    found = []
    for room in ARROWS:
        text = _cmake(csrc, room)
        needs = _needs(text)
        reachable = set(needs)
        for need in needs:
            reachable |= _reachable(csrc, need)
        included = {
            name.partition("/")[0] for file in _sources(csrc / room) for name in _includes(file)
        }
        used = (included & ARROWS.keys()) - {room}
        if missing := used - reachable:
            found.append(f"{room}/sources.cmake does not need {sorted(missing)}")
        if not needs <= ARROWS[room]:
            found.append(f"{room}/sources.cmake needs {sorted(needs - ARROWS[room])}")
        listed = set(re.findall(r"[\w/]+\.cc", text))
        there = {str(f.relative_to(csrc / room)) for f in (csrc / room).rglob("*.cc")}
        if there - listed:
            found.append(f"{room}/sources.cmake does not list {sorted(there - listed)}")
    return found


def _reachable(csrc: Path, room: str) -> set[str]:
    needs = _needs(_cmake(csrc, room))
    return needs.union(*(_reachable(csrc, need) for need in needs))


def outward_includes(folder: Path, allowed: set[str], roots: list[Path]) -> list[str]:
    """Returns what a folder beside the rooms includes, other than its own files and `allowed`."""
    found = []
    for file in _sources(folder):
        for included in _includes(file):
            own = any((base / included).exists() for base in (file.parent, folder, folder.parent))
            ours = any((root / included).exists() for root in roots)
            if ours and not own and included not in allowed:
                found.append(f"{file.relative_to(folder.parent)} includes {included}")
    return found


def test_rooms_include_only_what_lies_below_them() -> None:
    assert misplaced_includes(ROOT / "csrc") == []


def test_each_room_lists_its_sources_and_the_rooms_that_it_includes() -> None:
    assert unlisted_needs(ROOT / "csrc") == []


def test_no_header_but_the_settings_own_includes_the_settings_table() -> None:
    """A new row would otherwise recompile what includes that header, too: most of the engine."""
    including = {
        str(file.relative_to(ROOT / "csrc"))
        for file in _sources(ROOT / "csrc")
        if file.suffix == ".h"
        and {"base/settings.h", "base/settings_table.inc"} & set(_includes(file))
    }
    assert including == {"base/settings.h", "base/settings_rows.h"}


def test_every_room_is_one_of_these() -> None:
    folders = {folder.name for folder in (ROOT / "csrc").iterdir() if folder.is_dir()}
    assert folders == {*ARROWS, "include", "python"}


@pytest.mark.parametrize("name", ["tensorflow", "mxnet", "caffe"])
def test_glue_of_a_framework_sees_the_public_header_alone(name: str) -> None:
    allowed = {PUBLIC_HEADER, "dlpack/abi.h"}
    roots = [ROOT / "csrc", ROOT / "csrc/include"]
    assert outward_includes(ROOT / "frameworks" / name, allowed, roots) == []


def test_the_python_module_sees_the_public_header_alone() -> None:
    allowed = {PUBLIC_HEADER, "dlpack/abi.h"}
    roots = [ROOT / "csrc", ROOT / "csrc/include"]
    assert outward_includes(ROOT / "csrc/python", allowed, roots) == []


# ---- These tests can fail.


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Makes rooms of one empty source each, which declare that they need all that they may."""
    for room, below in ARROWS.items():
        (tmp_path / room).mkdir()
        (tmp_path / room / f"{room}.cc").write_text(f'#include "{room}/{room}.h"\n')
        (tmp_path / room / f"{room}.h").write_text("#pragma once\n")
        needs = f"set(NEEDS {' '.join(sorted(below))})" if below else ""
        (tmp_path / room / "sources.cmake").write_text(f"set(SOURCES {room}.cc)\n{needs}\n")
    return tmp_path


def test_a_sound_tree_passes(tree: Path) -> None:
    assert misplaced_includes(tree) == []
    assert unlisted_needs(tree) == []


@pytest.mark.parametrize(
    ("room", "included"),
    [
        ("base", "observe/observe.h"),
        ("negotiation", "transport/transport.h"),
        ("state", "execution/execution.h"),
        ("watch", "engine/engine.h"),
        ("execution", "watch/watch.h"),
        ("collectives", "schedule/schedule.h"),
        ("engine", PUBLIC_HEADER),
    ],
)
def test_a_header_that_reaches_up_is_found(tree: Path, room: str, included: str) -> None:
    (tree / room / f"{room}.h").write_text(f'#pragma once\n#include "{included}"\n')
    (found,) = misplaced_includes(tree)
    assert found.startswith(f"{room}/{room}.h includes {included}: ")


def test_a_need_that_is_not_listed_is_found(tree: Path) -> None:
    (tree / "schedule/sources.cmake").write_text("set(SOURCES schedule.cc)\nset(NEEDS base)\n")
    (tree / "schedule/schedule.cc").write_text('#include "negotiation/negotiation.h"\n')
    assert unlisted_needs(tree) == ["schedule/sources.cmake does not need ['negotiation']"]


def test_a_source_that_is_not_listed_is_found(tree: Path) -> None:
    (tree / "watch/more.cc").write_text("")
    assert unlisted_needs(tree) == ["watch/sources.cmake does not list ['more.cc']"]


def test_a_source_that_only_a_comment_lists_is_found(tree: Path) -> None:
    (tree / "watch/more.cc").write_text("")
    listing = tree / "watch/sources.cmake"
    listing.write_text(f"# more.cc\n{listing.read_text()}")
    assert unlisted_needs(tree) == ["watch/sources.cmake does not list ['more.cc']"]


@pytest.mark.parametrize(
    "line",
    ["#include <engine/engine.h>", '#include "../engine/engine.h"', '#include"engine/engine.h"'],
)
@pytest.mark.parametrize("name", ["more.h", "more.hpp", "more.cu"])
def test_every_way_to_write_an_include_is_read(tree: Path, line: str, name: str) -> None:
    (tree / "state" / name).write_text(f"{line}\n")
    (found,) = misplaced_includes(tree)
    assert found.startswith(f"state/{name} includes ")
