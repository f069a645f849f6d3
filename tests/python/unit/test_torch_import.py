"""Importing perseus.torch beside a PyTorch that is too old, or none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

WITHOUT_TORCH = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
"""


def imported(script: str, first_on_path: Path) -> str:
    """Returns the last line that the failing program prints."""
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(first_on_path)!r})\n{script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stdout
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize("module", ["perseus.torch", "perseus.torch.horovod"])
def test_an_old_torch_is_named_with_what_is_needed(tmp_path: Path, module: str) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '2.0.1'\nclass Tensor: pass\n")
    assert imported(f"import {module}", tmp_path) == (
        "perseus.common.exceptions.HorovodVersionMismatchError: "
        "torch 2.0.1 is installed, but it must be 2.1 or newer"
    )


def test_no_torch_is_said(tmp_path: Path) -> None:
    said = imported(f"{WITHOUT_TORCH}\nimport perseus.torch.horovod", tmp_path)
    assert said.startswith("ModuleNotFoundError: perseus.torch needs PyTorch, which is not")


def test_the_extra_asks_for_the_version_that_the_message_names() -> None:
    extra = re.search(r'^torch = \["torch>=(.*)"\]$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert extra and extra[1] == "2.1"
