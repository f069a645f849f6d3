"""Tests scripts/check_release.py, and that the changelog has the form that it reads."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()

HEADER = """\
#define PERSEUS_VERSION_MAJOR 1
#define PERSEUS_VERSION_MINOR 2
#define PERSEUS_VERSION_PATCH 3
"""
RELEASED = """\
# Changelog

## [Unreleased]

### Added

- not yet

## [1.2.3] - 2027-01-31

### Fixed

- a fault

## [1.2.2] - 2026-12-01

- older
"""


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("check_release")


def test_a_tree_is_ready_if_tag_version_and_changelog_agree(release: ModuleType) -> None:
    assert release.faults("v1.2.3", HEADER, RELEASED) == []
    assert release.notes("1.2.3", RELEASED) == "### Fixed\n\n- a fault"


@pytest.mark.parametrize(
    ("tag", "changelog", "fault"),
    [
        ("v1.2.4", RELEASED, "the tag is v1.2.4; it must be v1.2.3, after perseus.h"),
        ("1.2.3", RELEASED, "the tag is 1.2.3; it must be v1.2.3"),
        ("v1.2.3", RELEASED.replace("[1.2.3]", "[1.2.0]"), "has no section [1.2.3]"),
        ("v1.2.3", RELEASED.replace(" - 2027-01-31", ""), "must end in the day of the release"),
        ("v1.2.3", RELEASED.replace("### Fixed\n\n- a fault\n", ""), "[1.2.3] of CHANGELOG.md is"),
    ],
)
def test_what_keeps_a_tree_from_being_released_is_said(
    release: ModuleType, tag: str, changelog: str, fault: str
) -> None:
    (found,) = release.faults(tag, HEADER, changelog)
    assert fault in found


def test_the_script_refuses_a_tag_that_is_not_this_version() -> None:
    script = [sys.executable, str(ROOT / "scripts/check_release.py"), "v999.0.0"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 1
    assert "the tag is v999.0.0; it must be v" in done.stderr


def test_the_changelog_has_a_section_for_this_version(release: ModuleType) -> None:
    this = release.version(release.HEADER.read_text())
    assert release.notes(this, CHANGELOG)


def test_the_changelog_keeps_to_its_form() -> None:
    sections = re.findall(r"^## (.*)$", CHANGELOG, re.M)
    assert sections[0] == "[Unreleased]"
    version = r"\[\d+\.\d+\.\d+\]( - \d{4}-\d\d-\d\d)?"
    assert [name for name in sections[1:] if not re.fullmatch(version, name)] == []
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", CHANGELOG, re.M)) <= kinds
