"""Tests what `make docs` adds to Sphinx: navigation, docstrings, and the check of links."""

from __future__ import annotations

import ctypes
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from perseus import config

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(ROOT / "docs"))


@pytest.fixture
def site_links(paths: None) -> ModuleType:
    return importlib.import_module("site_links")


def test_links_that_lead_nowhere_are_named(site_links: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "picture.svg").touch()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="#top"></a><a href="#gone"></a><a href="api/c.html#f">f</a>'
        '<a href="api/c.html#g">g</a><a href="no.html">x</a><img src="picture.svg?v=1">'
        '<img src="lost.svg"><a href="https://example.org/no#x">x</a><a href="mailto:a@b">x</a>'
    )
    (tmp_path / "api/c.html").write_text('<dt id="f"></dt><a href="../index.html#top">x</a>')
    assert site_links.broken_links(tmp_path) == [
        "index.html: #gone: the page has no such anchor",
        "index.html: api/c.html#g: the page has no such anchor",
        "index.html: lost.svg: there is no such file",
        "index.html: no.html: there is no such file",
    ]


def test_a_list_of_links_becomes_a_part_of_the_navigation() -> None:
    with_navigation = importlib.import_module("docsite.navigation").with_navigation
    project = importlib.import_module("docsite.project")
    page = (
        "# Title\n\nText.\n\n## Caption\n\n"
        "- [One](torch.md): something\n  that is long\n- [Two](../CHANGELOG.md): else\n"
    )
    address = f"{project.address()}/blob/main/CHANGELOG.md"
    assert with_navigation(page) == (
        f"{page}\n```{{toctree}}\n:hidden:\n:caption: Caption\n\n"
        f"One <torch>\nTwo <{address}>\n```\n"
    )


def test_every_section_of_the_index_is_in_the_navigation() -> None:
    with_navigation = importlib.import_module("docsite.navigation").with_navigation
    index = (ROOT / "docs/index.md").read_text()
    captions = re.findall(r"^:caption: (.+)$", with_navigation(index), re.M)
    assert captions == re.findall(r"^## (.+)$", index, re.M)


def test_docstrings_are_turned_into_restructured_text() -> None:
    restructured = importlib.import_module("docsite.docstrings").restructured
    docstring = """\
Starts `allreduce_`, and ``more``, of *args; see param_groups.

    hvd.init()

    hvd.allreduce_(x)

Args:
  tensor: a tensor_ that is
    long.
"""
    assert restructured(docstring.split("\n")) == [
        r"Starts ``allreduce_``, and ``more``, of \*args; see param_groups.",
        "",
        ".. code-block:: python",
        "",
        "    hvd.init()",
        "",
        "    hvd.allreduce_(x)",
        "",
        "Args:",
        r"  tensor: a tensor\_ that is",
        "    long.",
        "",
    ]


def test_the_version_is_that_of_the_library() -> None:
    version = importlib.import_module("docsite.project").version()
    (file,) = config.library_dir().glob("libperseus.so.*")
    library = ctypes.CDLL(str(file))
    major, minor, patch = (int(part) for part in version.split("."))
    assert library.perseus_version() == major * 10000 + minor * 100 + patch


def test_packages_that_another_needs_and_that_are_missing_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    debian = importlib.import_module("debian")
    depends = "doxygen\n  Depends: libc6\n  Depends: libllvm14\nlibc6\nlibllvm14\n<virtual>\n"
    installed = "bash\t5.2\nlibc6:amd64\t2.36\n"
    monkeypatch.setattr(
        debian, "_output", lambda *command: depends if command[0] == "apt-cache" else installed
    )
    assert debian.missing("doxygen") == ["doxygen", "libllvm14"]
