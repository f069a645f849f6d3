"""What a release consists of: its metadata, and the files of the sdist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).resolve().parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = "https://github.com/perseus-train/perseus"
PAGES = "https://perseus-train.github.io/perseus/"


@pytest.fixture(scope="module")
def egg_info(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the metadata of the package, and the names of the sdist's files."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("egg_info")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder / "perseus_train.egg-info"


@pytest.fixture(scope="module")
def metadata(egg_info: Path) -> Message:
    return Parser().parsestr((egg_info / "PKG-INFO").read_text())


def test_sdist_holds_what_the_repository_holds_and_nothing_else(egg_info: Path) -> None:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("this is no clone of the repository")
    # Files and folders whose names begin with a dot are for those who work on a clone.
    tracked = {
        name for name in done.stdout.splitlines() if (ROOT / name).exists() and name[0] != "."
    }
    listed_there = (egg_info / "SOURCES.txt").read_text().splitlines()
    held = {name for name in listed_there if not name.startswith(str(egg_info))}
    assert held == tracked


def test_a_wheel_has_the_drop_in_s_command_and_metadata(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    build = [sys.executable, "setup.py", "-q", "build_py", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    dropin = tmp_path / "perseus/dropin"
    assert os.access(dropin / "programs/horovodrun", os.X_OK)
    (info,) = (dropin / "site").glob("horovod-*.dist-info")
    assert {file.name for file in info.iterdir()} >= {"METADATA", "entry_points.txt"}


def test_every_python_is_classified_and_gets_a_wheel(metadata: Message) -> None:
    prefix = "Programming Language :: Python :: 3."
    minors = [
        int(line.removeprefix(prefix))
        for line in metadata.get_all("Classifier", [])
        if line.startswith(prefix)
    ]
    assert metadata["Requires-Python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["tool"]["cibuildwheel"]["build"] == [f"cp3{minor}-*" for minor in minors]
    versions = re.search(r"^VERSIONS = \((.*)\)", (ROOT / "scripts/wheels.py").read_text(), re.M)
    assert versions is not None
    assert versions[1] == ", ".join(f'"3.{minor}"' for minor in minors)


def test_urls_lead_to_the_project(metadata: Message) -> None:
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} <= urls.keys()
    for url in urls.values():
        assert url.startswith((REPOSITORY, PAGES)), url
    in_repository = urls["Changelog"].removeprefix(f"{REPOSITORY}/blob/main/")
    assert (ROOT / in_repository).is_file()


def test_links_of_the_description_lead_into_the_repository(metadata: Message) -> None:
    # The package index shows README.md, and has no other file of the repository.
    text = metadata.get_payload()
    links = re.findall(r'(?:\]\(|\b(?:href|src|srcset)=")([^)"]+)', text)
    base = rf"{REPOSITORY}/(?:blob|raw)/v{re.escape(metadata['Version'])}/"
    assert [link for link in links if not re.match(r"https?:|#", link)] == []
    of_repository = [link for link in links if re.match(base, link)]
    assert of_repository
    for link in of_repository:
        path = re.sub(base, "", link).partition("#")[0]
        assert (ROOT / path).exists(), link
        is_image = path.endswith((".svg", ".png"))
        assert link.startswith(f"{REPOSITORY}/{'raw' if is_image else 'blob'}/"), link
