from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import perseus
from perseus import config
from perseus_core import _engine


def test_header_library_and_cmake_package_are_where_config_says() -> None:
    assert (config.include_dir() / "perseus/perseus.h").exists()
    assert (config.library_dir() / "libperseus.so").exists()
    assert (config.library_dir() / "libperseus.so.0.1").exists()
    assert (config.cmake_dir() / "perseusConfig.cmake").exists()
    assert (config.library_dir() / "pkgconfig/perseus.pc").exists()


def test_several_answers_make_one_line() -> None:
    command = [sys.executable, "-m", "perseus.config", "--cflags", "--libs"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"{config.cflags()} {config.libs()}\n"


def test_package_and_library_have_one_version() -> None:
    number = _engine.version()
    assert perseus.__version__ == f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def test_importing_the_launcher_does_not_load_the_engine() -> None:
    script = "import sys, perseus, perseus.run.cli; assert 'perseus_core' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parent)
