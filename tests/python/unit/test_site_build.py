"""Builds a small site with what docs/docsite adds to Sphinx. `make env-docs` installs Sphinx."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from conftest import skip_or_fail

DOCS = Path(__file__).resolve().parents[3] / "docs"

INDEX = """\
# Title

## Caption

- [Page](page.md): a page
- [Changes](../CHANGELOG.md): a file of the repository
"""

PAGE = """\
# A page

See [page.md](page.md), [the other](index.md), [examples](../examples), [gone](../gone.py).

| name | value |
|---|---|
| `PERSEUS_LONG_NAME` | 1 |

    import perseus

Text.

    perseusrun -np 4 python train.py
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Builds the two pages in a repository of their own; returns the site's folder."""
    if importlib.util.find_spec("sphinx") is None:
        skip_or_fail("Sphinx is not installed")
    from sphinx.application import Sphinx

    monkeypatch.syspath_prepend(str(DOCS))
    for name in ("docsite.project", "docsite.links", "docsite.navigation"):
        monkeypatch.setattr(importlib.import_module(name), "ROOT", tmp_path)
    pages = tmp_path / "docs"
    for folder in (pages, tmp_path / "examples"):
        folder.mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project.urls]\nRepository = "https://example.org/repository"\n'
    )
    (tmp_path / "CHANGELOG.md").touch()
    (pages / "index.md").write_text(INDEX)
    (pages / "page.md").write_text(PAGE)
    (pages / "conf.py").write_text(
        'extensions = ["myst_parser", "docsite.navigation", "docsite.links", "docsite.tables",\n'
        '  "docsite.code"]\n'
    )
    with (tmp_path / "warnings").open("w") as warnings:
        app = Sphinx(
            *(str(path) for path in (pages, pages, tmp_path / "site", tmp_path / "doctrees")),
            "html",
            status=None,
            warning=warnings,
        )
        app.build()
    return tmp_path / "site"


def test_links_lead_to_pages_and_to_the_repository(site: Path) -> None:
    html = (site / "page.html").read_text()
    links = {
        re.sub("<.*?>", "", text): target
        for target, text in re.findall(r'<a class="reference[^"]*" href="([^"]*)">(.*?)</a>', html)
    }
    assert links["A page"] == "#"  # the page's title, in place of page.md
    assert links["the other"] == "index.html"
    assert links["examples"] == "https://example.org/repository/tree/main/examples"
    assert "../gone.py does not exist" in (site.parent / "warnings").read_text()
    assert 'href="https://example.org/repository/blob/main/CHANGELOG.md"' in html  # navigation


def test_a_long_name_in_a_table_may_break_after_underscores(site: Path) -> None:
    html = re.sub("</?span.*?>", "", (site / "page.html").read_text())
    assert "PERSEUS_<wbr>LONG_<wbr>NAME" in html


def test_indented_python_is_highlighted(site: Path) -> None:
    html = (site / "page.html").read_text()
    languages = re.findall(r'<div class="highlight-(\w+)', html)
    assert languages == ["python", "none"]
