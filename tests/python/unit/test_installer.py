"""Tests of scripts/installer.py with a uv that records how it is called."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]

#: Fails if PyTorch's own index is asked for and FAILING is set.
UV = """#!{python}
import json, os, sys
backend = os.environ.get("UV_TORCH_BACKEND")
with open("{calls}", "a") as file:
    file.write(json.dumps([sys.argv[1:], backend]) + "\\n")
sys.exit(1 if backend and os.environ.get("FAILING") else 0)
"""


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delenv("NO_UV", raising=False)
    monkeypatch.delenv("UV_TORCH_BACKEND", raising=False)
    sys.modules.pop("installer", None)
    module = importlib.import_module("installer")
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(UV.format(python=sys.executable, calls=tmp_path / "calls"))
    uv.chmod(0o755)
    monkeypatch.setattr(module, "HOME", tmp_path)
    return module


def calls(folder: Path) -> list[tuple[str, str | None]]:
    """Returns the last argument of each call of uv, and the build of PyTorch that it asked for."""
    lines = (folder / "calls").read_text().splitlines()
    return [(arguments[-1], backend) for arguments, backend in map(json.loads, lines)]


def test_pytorch_comes_from_its_index_of_cpu_builds(installer: ModuleType, tmp_path: Path) -> None:
    assert installer.install(sys.executable, "torch==2.13.0")
    assert calls(tmp_path) == [("torch==2.13.0", "cpu")]


def test_a_file_of_requirements_may_name_it(installer: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "demo.txt"
    file.write_text("numpy\ntorch==2.13.0\n")
    assert installer.install(sys.executable, "-r", str(file))
    assert calls(tmp_path) == [(str(file), "cpu")]


def test_without_that_index_it_comes_from_the_package_index(
    installer: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FAILING", "1")
    assert installer.install(sys.executable, "torch")
    assert calls(tmp_path) == [("torch", "cpu"), ("torch", None)]
    assert "may bring gigabytes of CUDA" in capsys.readouterr().out


def test_the_user_chooses_another_build(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_TORCH_BACKEND", "cu130")
    assert installer.install(sys.executable, "torch>=2.1")
    assert calls(tmp_path) == [("torch>=2.1", "cu130")]


def test_other_packages_come_from_the_package_index(installer: ModuleType, tmp_path: Path) -> None:
    assert installer.install(sys.executable, "torch_geometric", "pytorch-ignite")
    assert calls(tmp_path) == [("pytorch-ignite", None)]
