"""Tests the files that contributors and editors read: each agrees with what it is about."""

from __future__ import annotations

import configparser
import importlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml")
import yaml

ROOT = Path(__file__).resolve().parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
PAGES = [
    ROOT / name
    for name in (
        *("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
        *("docs/development.md", ".github/PULL_REQUEST_TEMPLATE.md"),
    )
]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
SPDX = "SPDX-License-Identifier: Apache-2.0"
#: Files that editors do not write by these rules: pictures, data, and what a fuzzer has found.
NOT_TEXT = re.compile(r"\.(svg|png|gif|json|npz)$|^tests/fuzz/corpus/")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this tree is not a git repository")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def editor_rules() -> configparser.ConfigParser:
    rules = configparser.ConfigParser()
    rules.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    return rules


def hooks() -> dict[str, Any]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    return {hook["id"]: hook for hook in config["repos"][0]["hooks"]}


def test_installed_headers_name_their_license() -> None:
    installed = set()
    for file in [*ROOT.glob("cmake/*.cmake"), *ROOT.glob("frameworks/*/CMakeLists.txt")]:
        for header in re.findall(r"install\(FILES\s+(\S+\.h(?:pp)?)\b", file.read_text()):
            path = header.replace("${PROJECT_SOURCE_DIR}", str(ROOT))
            installed.add((file.parent / path).resolve())
    assert {"perseus.h", "perseus_caffe.hpp"} <= {header.name for header in installed}
    for header in installed | set((ROOT / "csrc/include/perseus").iterdir()):
        assert SPDX in header.read_text().splitlines()[0], header
    assert 'license = "Apache-2.0"' in PROJECT


def test_editors_are_told_how_sources_are_formatted() -> None:
    rules = editor_rules()
    width = rules["*"]["max_line_length"]
    assert f"ColumnLimit: {width}" in (ROOT / ".clang-format").read_text()
    assert f"line-length = {width}" in PROJECT
    assert (rules["*"]["indent_style"], rules["*"]["indent_size"]) == ("space", "2")
    assert rules["*.{py,pyi}"]["indent_size"] == "4"
    assert rules["Makefile"]["indent_style"] == "tab"


def test_files_are_as_editors_are_told() -> None:
    faults = []
    for name in tracked():
        if NOT_TEXT.search(name):
            continue
        content = (ROOT / name).read_bytes()
        if content and not content.endswith(b"\n"):
            faults.append(f"{name}: the last line has no end")
        # A diff within a page has lines of one space.
        if re.search(rb"\S[ \t\r]+$" if name.endswith(".md") else rb"[ \t\r]$", content, re.M):
            faults.append(f"{name}: white space at the end of a line")
        if name != "Makefile" and re.search(rb"^ *\t", content, re.M):
            faults.append(f"{name}: indented by a tab")
    assert faults == []


def test_hooks_run_the_tools_of_make_lint() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert recipe
    tools = re.findall(r"\$\(VENV\)/bin/([\w-]+(?: (?:check|format)\b)?)", recipe[1])
    assert {"clang-format", "ruff check", "ruff format", "mypy"} <= set(tools)
    scripts = re.findall(r"\$\(PY\) (scripts/\w+\.py)", recipe[1])
    entries = [hook["entry"] for hook in hooks().values()]
    for command in [*tools, *(f"python {script}" for script in scripts)]:
        assert any(f".venv/bin/{command} " in f"{entry} " for entry in entries), command
    assert len(entries) == len(tools) + len(scripts)


def test_hooks_have_the_versions_of_make_lint() -> None:
    pinned = dict(
        re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements/lint.txt").read_text(), re.M)
    )
    for hook in hooks().values():
        # What runs from .venv is what requirements/lint.txt put there.
        assert hook["language"] == "system"
        assert "additional_dependencies" not in hook and "rev" not in hook
        program = Path(hook["entry"].split()[0])
        assert program.parent == Path(".venv/bin")
        assert program.name == "python" or program.name in pinned


def test_everything_has_an_owner_of_one_organisation() -> None:
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    assert {owner for _, *owners in rules for owner in owners} == {"@perseus-train/maintainers"}
    assert [path for path, *_ in rules[1:] if not (ROOT / path.lstrip("/")).exists()] == []
    rooms = {f"/csrc/{room.name}/" for room in (ROOT / "csrc").iterdir() if room.is_dir()}
    assert rooms <= {path for path, *_ in rules}


def test_the_repository_has_one_address() -> None:
    found = set()
    for file in [*ROOT.glob("*.md"), *ROOT.rglob(".github/**/*"), *ROOT.glob("docs/*.md")]:
        if file.is_file():
            found |= set(re.findall(r"https://github\.com/[\w-]+/perseus\b", file.read_text()))
    (address,) = found
    assert f'"{address}"' in PROJECT


def test_the_forms_for_issues_are_whole() -> None:
    assert [form.stem for form in FORMS] == ["bug", "config", "feature"]
    for form in FORMS:
        content = yaml.safe_load(form.read_text())
        if form.stem == "config":
            assert content["blank_issues_enabled"] is False
            for link in content["contact_links"]:
                assert sorted(link) == ["about", "name", "url"]
            continue
        assert {"name", "description", "body"} <= set(content)
        ids = [field["id"] for field in content["body"]]
        assert len(ids) == len(set(ids))
        for field in content["body"]:
            assert field["type"] in {"textarea", "input", "dropdown", "checkboxes"}
            assert field["attributes"]["label"]
            assert ("options" in field["attributes"]) == (
                field["type"] in {"dropdown", "checkboxes"}
            )


def test_the_form_for_bugs_asks_for_what_we_need() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    required = {
        field["id"] for field in form["body"] if field.get("validations", {}).get("required")
    }
    assert required == {"what", "program", "launcher", "command", "versions", "output"}


def test_the_development_container_builds_what_tests_need() -> None:
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    container = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
    made = container["postCreateCommand"].split()
    assert made[0] == "make"
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
    requirements = {file.stem for file in (ROOT / "requirements").glob("*.txt")}
    for target in made[1:]:
        assert target in targets or target.removeprefix("env-") in requirements
    image = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text()
    for package in ("ccache", "clang", "doxygen", "g++", "spin"):
        assert re.search(rf"(?<=\s){re.escape(package)}(?=\s)", image), package


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    lines = [line for line in prose.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 100 and "://" not in line] == []


def test_the_page_for_developers_has_every_target() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):.*## ", MAKEFILE, re.M)
    page = (ROOT / "docs/development.md").read_text()
    described = re.findall(r"^\| `make ([a-z-]+)` \| \S", page, re.M)
    assert [name for name in targets if name not in described] == []
    assert len(described) == len(set(described))


def test_the_page_for_developers_has_every_part_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    ci = importlib.import_module("ci")
    page = (ROOT / "docs/development.md").read_text()
    (table,) = re.findall(r"^\| part \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.M)
    rows = re.findall(r"^\| ([^|]+) \|", table, re.M)
    described = {part for row in rows for part in row.split(", ")}
    assert described == {part.name for part in ci.all_parts()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
    text = page.read_text()
    commands = re.findall(r"`make ([^`]+)`", text) + re.findall(r"^make (.*)$", text, re.M)
    words = {word for command in commands for word in command.partition("#")[0].split()}
    named = {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)}
    requirements = {f"env-{file.stem}" for file in (ROOT / "requirements").glob("*.txt")}
    assert named - targets - requirements == set()
