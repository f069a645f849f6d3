"""Tests the pages of docs/: generated parts are up to date, and links lead somewhere."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import perseus.torch.horovod

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(DOCS.glob("*.md")),
    ROOT / "README.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "benchmarks/results", "examples")),
]

#: Pages whose layout is checked.
LAID_OUT = [
    ROOT / page
    for page in (
        "benchmarks/README.md",
        "benchmarks/results/README.md",
        "docs/architecture.md",
        "docs/c-api.md",
        "docs/caffe.md",
        "docs/codecs.md",
        "docs/collectives.md",
        "docs/containers.md",
        "docs/counters.md",
        "docs/development.md",
        "docs/drop-in.md",
        "docs/errors.md",
        "docs/glossary.md",
        "docs/gpu.md",
        "docs/launching.md",
        "docs/migrating.md",
        "docs/mxnet.md",
        "docs/negotiation.md",
        "docs/performance.md",
        "docs/perseus-core.md",
        "docs/programs.md",
        "docs/quickstart.md",
        "docs/reliability.md",
        "docs/schedule.md",
        "docs/tensorflow-versions.md",
        "docs/tensorflow.md",
        "docs/threads.md",
        "docs/timeline.md",
        "docs/torch-versions.md",
        "docs/torch.md",
        "docs/transports.md",
        "docs/troubleshooting.md",
        "examples/README.md",
    )
]

LINK = re.compile(r"\]\(([^)\s]+)\)")
# `csrc/engine/engine.cc`, `perseus/torch/`: a path from the root of the repository.
NAMED_PATH = re.compile(
    r"`((?:csrc|docs|examples|perseus|perseus_core|scripts|tests)/[\w./-]*)(?::\w+)?`"
)


@pytest.mark.parametrize("page", ["settings", "counters", "migrating", "performance", "programs"])
def test_a_page_with_generated_sections_is_up_to_date(page: str) -> None:
    command = [sys.executable, str(ROOT / f"scripts/make_{page}_page.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.fixture
def migrating(scripts: None) -> ModuleType:
    return importlib.import_module("make_migrating_page")


def test_a_section_that_is_out_of_date_is_noticed(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated_page = importlib.import_module("generated_page")
    page = tmp_path / "page.md"
    text = "by hand\n<!-- begin a: written by scripts/make.py -->\n{}<!-- end a -->\nby hand\n"
    page.write_text(text.format("\nold\n\n"))
    monkeypatch.setattr(sys, "argv", ["make.py"])
    with pytest.raises(SystemExit, match="is out of date; `make pages` writes it anew"):
        generated_page.update(page, {"a": "new\n"}, check=True)
    generated_page.update(page, {"a": "new\n"}, check=False)
    assert page.read_text() == text.format("\nnew\n\n")
    with pytest.raises(SystemExit, match="the section b 0 times"):
        generated_page.update(page, {"b": "new\n"}, check=False)


def test_a_name_of_horovod_s_without_a_state_is_noticed(
    migrating: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrating.state("horovod.torch", "poll")
    monkeypatch.delattr(perseus.torch.horovod, "poll")
    with pytest.raises(SystemExit, match=r"horovod.torch.poll: EXPLAINED must say what it is"):
        migrating.state("horovod.torch", "poll")


def test_a_name_that_has_come_since_is_noticed(
    migrating: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perseus.torch.horovod, "check_extension", print, raising=False)
    with pytest.raises(SystemExit, match=r"horovod.torch.check_extension: EXPLAINED must say"):
        migrating.state("horovod.torch", "check_extension")


def test_a_name_that_only_we_have_is_in_the_table(
    migrating: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perseus.torch.horovod, "__all__", ["poll", "Handle"])
    monkeypatch.setattr(perseus.torch.horovod, "Handle", Path, raising=False)
    assert "| `Handle` | only here | " in migrating.names_table("horovod.torch")


def test_a_counter_that_the_engine_lacks_is_noticed(
    scripts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = importlib.import_module("make_counters_page")
    page.check_names()
    monkeypatch.setattr(page, "counters", lambda: {"agreements": 0})
    with pytest.raises(SystemExit, match="build it again"):
        page.check_names()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text())]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    named = NAMED_PATH.findall(page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_index_once() -> None:
    links = LINK.findall((DOCS / "index.md").read_text())
    listed = [DOCS / link for link in links if not link.startswith("../")]
    pages = {*DOCS.glob("*.md"), *DOCS.glob("api/*.rst")} - {DOCS / "index.md"}
    assert sorted(listed) == sorted(pages)


def by_hand(page: Path) -> str:
    """Returns a page without its generated sections."""
    return re.sub(r"<!-- begin .*?<!-- end \w+ -->", "", page.read_text(), flags=re.S)


@pytest.mark.parametrize("page", LAID_OUT, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped_and_code_is_fenced(page: Path) -> None:
    """Rows of tables, pictures and lone links cannot be wrapped."""
    text = by_hand(page)
    fences = re.findall(r"^ *```(\w*)\n.*?^ *```$", text, re.M | re.S)
    assert "" not in fences, "a block has no language"
    prose = re.sub(r"^ *```\w*\n.*?^ *```$", "", text, flags=re.M | re.S)
    long = [line for line in prose.splitlines() if len(line) > 100]
    assert [line for line in long if not re.match(r"\||\s*!?\[", line)] == []
    assert re.findall(r"\n\n    .*", prose) == [], "code is indented in place of fenced"
