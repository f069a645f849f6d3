"""scripts/wheels.py: which Pythons it takes, and which changes by auditwheel it refuses."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
LIBRARY = "perseus_core/lib/libperseus.so.0.1"


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "scripts/wheels.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, platform: str, **contents: str) -> Path:
    path = folder / f"perseus_train-0.1.0-cp312-cp312-{platform}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("perseus_core/", "")
        archive.writestr(LIBRARY, contents.get("library", "code"))
        archive.writestr("perseus_train-0.1.0.dist-info/WHEEL", f"Tag: cp312-cp312-{platform}")
        if "more" in contents:
            archive.writestr(contents["more"], "code")
    return path


def test_one_python_of_each_version_that_is_named(
    wheels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if wheels.probe(sys.executable)[1]:
        pytest.skip(f"{sys.executable} cannot build wheels")
    again = tmp_path / "again"
    again.symlink_to(sys.executable)
    monkeypatch.setenv("PYTHONS", f"{sys.executable} {again}")
    assert wheels.pythons() == {VERSION: sys.executable}


@pytest.mark.parametrize("named", ["/no/such/python", shutil.which("true")])
def test_a_named_python_that_does_not_run_is_an_error(
    wheels: ModuleType, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("PYTHONS", named)
    with pytest.raises(wheels.WheelError, match=f"{named}, which does not run; it must be"):
        wheels.pythons()


def test_a_new_tag_is_all_that_may_change(wheels: ModuleType, tmp_path: Path) -> None:
    built = wheel(tmp_path, "linux_x86_64")
    wheels.check(wheel(tmp_path, "manylinux_2_35_x86_64"), built)
    with pytest.raises(wheels.WheelError, match="no manylinux tag"):
        wheels.check(built, built)
    changed = wheel(tmp_path, "manylinux_2_35_x86_64", library="other code")
    with pytest.raises(wheels.WheelError, match=f"changed {LIBRARY}"):
        wheels.check(changed, built)
    grafted = "perseus_train.libs/libssl-1234.so"
    with pytest.raises(wheels.WheelError, match=f"changed {grafted}"):
        wheels.check(wheel(tmp_path, "manylinux_2_35_x86_64", more=grafted), built)
