"""The pages of docs/: written from what is there, and joined by links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]

LINK = re.compile(r"\]\(([^)\s]+)\)")
# `csrc/engine/engine.cc`, `perseus/torch/`: a path from the root of the repository.
NAMED_PATH = re.compile(
    r"`((?:csrc|docs|examples|perseus|perseus_core|scripts|tests)/[\w./-]*)(?::\w+)?`"
)


def test_the_page_of_settings_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_settings_page.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text())]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = NAMED_PATH.findall(page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_index() -> None:
    listed = set(LINK.findall((DOCS / "README.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == listed
