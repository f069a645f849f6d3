"""Builds the engine with CMake and installs it into the package perseus_core."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# A build backend runs this file without the tree on Python's path.
sys.path.append(str(ROOT / "scripts"))
from find_tool import find_tool  # noqa: E402


def version() -> str:
    header = (ROOT / "csrc/include/perseus/perseus.h").read_text()
    parts = re.findall(r"^#define PERSEUS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
    return ".".join(parts)


def long_description() -> str:
    """Returns README.md for the package index, with links into the repository at this release."""
    project = (ROOT / "pyproject.toml").read_text()
    (repository,) = re.findall(r'^Repository = "(.*)"$', project, re.M)

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["path"].endswith((".svg", ".png")) else "blob"
        return f"{link['before']}{repository}/{kind}/v{version()}/{link['path']}"

    link = r'(?P<before>\]\(|\b(?:href|src|srcset)=")(?![a-z]+:|#)(?P<path>[^)"#]+)'
    return re.sub(link, absolute, (ROOT / "README.md").read_text())


TARGETS = ["perseus", "_engine", "perseus_mxnet", "perseus_tensorflow"]


class CMakeBuild(build_ext):
    """`python setup.py build_ext --inplace` is the developer's build, in build/dev; with --debug it
    is in build/debug, not optimised and with assertions. A wheel's build uses the options of
    build/dev, so that the tests run the code that ships, and is stripped. CMAKE_ARGS adds
    arguments, as in other projects."""

    def run(self) -> None:
        for ext in self.extensions:
            self.build_extension(ext)

    def build_extension(self, ext: Extension) -> None:
        package = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = ROOT / "build" / self.build_folder()
        build.mkdir(parents=True, exist_ok=True)
        cmake = tool("cmake")
        # Tools and pybind11 may come from an isolated environment that is gone by the next build.
        configure = [
            cmake,
            f"-S{ROOT}",
            f"-B{build}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
            "-DCMAKE_INSTALL_MESSAGE=NEVER",
            "-DCMAKE_INSTALL_LIBDIR=lib",
            "-DCMAKE_INSTALL_INCLUDEDIR=include",
            "-DPERSEUS_BUILD_PYTHON=ON",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DPython_INCLUDE_DIR={python_include()}",
            f"-Dpybind11_DIR={pybind11_dir(build)}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        jobs = ["-j", str(self.parallel)] if self.parallel else []
        install = [cmake, "--install", str(build), "--prefix", str(package)]
        install += [] if self.inplace else ["--strip"]
        self.run_tool(configure)
        self.run_tool([cmake, "--build", str(build), *jobs, "--target", *TARGETS])
        for component in ("library", "python"):
            self.run_tool([*install, "--component", component])

    def build_folder(self) -> str:
        if not self.inplace:
            return f"wheel-{sys.implementation.cache_tag}"
        return "debug" if self.debug else "dev"

    def run_tool(self, command: list[str]) -> None:
        self.announce(shlex.join(command), level=2)
        try:
            subprocess.run(command, check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                f"perseus: building the engine failed (status {error.returncode}): "
                f"{shlex.join(command)}\nThe compiler's own message is above. Perseus needs a "
                "C++20 compiler: g++ 11 or clang++ 14, or newer."
            ) from None

    def get_source_files(self) -> list[str]:
        return []


def tool(name: str) -> str:
    found = find_tool(name)
    if not found:
        raise SystemExit(f"perseus: {name} is missing; `pip install {name}` brings it.")
    return found


def python_include() -> str:
    return os.environ.get("PERSEUS_PYTHON_INCLUDE") or sysconfig.get_paths()["include"]


def pybind11_dir(build: Path) -> Path:
    """Returns pybind11's CMake files by way of a link in the build folder. An isolated environment
    has another path each time, and a compiler's cache finds an object by the paths of its headers.
    """
    import pybind11

    package = Path(pybind11.__file__).resolve().parent
    link = build / "pybind11"
    link.unlink(missing_ok=True)
    link.symlink_to(package)
    return link / Path(pybind11.get_cmake_dir()).resolve().relative_to(package)


setup(
    version=version(),
    long_description=long_description(),
    long_description_content_type="text/markdown",
    ext_modules=[Extension("perseus_core._engine", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
