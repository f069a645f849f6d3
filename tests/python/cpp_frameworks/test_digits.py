"""examples/tiny_dnn and examples/dlib: two C++ frameworks on real digits, at 1 to 4 ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from compiling import compiled
from conftest import skip_or_fail

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path.insert(0, str(EXAMPLES))

import mnist_file  # noqa: E402

INCLUDE = Path("/usr/include")
WANTED_ACCURACY = 85.0  # percent

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Program:
    """An example, how it is compiled, and how far apart its weights may be.

    A weight is at most about 2, and gradients are added up in another order at every number of
    ranks: `tolerance` is some 20 to 200 times what that has been seen to make of 120 steps. One
    image with a wrong label, on one rank in the 60th step, makes 8e-3.
    """

    folder: str
    dtype: str
    tolerance: float
    headers: tuple[str, ...]
    flags: tuple[str, ...]
    packages: str

    def __str__(self) -> str:
        return f"{self.folder} {self.dtype}"


TINY_DNN_HEADERS = ("tiny_dnn/tiny_dnn.h", "cereal/cereal.hpp", "stb/stb_image_resize.h")
TINY_DNN_PACKAGES = "tiny-dnn libcereal-dev libstb-dev"
DOUBLE = ("-DCNN_USE_DOUBLE",)
PROGRAMS = [
    Program("tiny_dnn", "float32", 1e-5, TINY_DNN_HEADERS, (), TINY_DNN_PACKAGES),
    Program("tiny_dnn", "float64", 1e-13, TINY_DNN_HEADERS, DOUBLE, TINY_DNN_PACKAGES),
    Program("dlib", "float32", 5e-5, ("dlib/dnn.h",), ("-ldlib",), "libdlib-dev"),
]
#: In float64, tiny-dnn makes the same calls.
MARKED = [
    pytest.param(
        program, id=str(program), marks=pytest.mark.long if program.flags == DOUBLE else ()
    )
    for program in PROGRAMS
]


def write_numbers(path: Path, head: list[int], numbers: npt.NDArray[Any]) -> None:
    """Writes a file in MNIST's format: numbers in its header have 4 bytes, the highest first."""
    path.write_bytes(np.array(head, ">u4").tobytes() + numbers.astype(np.uint8).tobytes())


class Examples:
    """The programs, compiled once, and the digits that they train on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part, (images, labels) in zip(("train", "t10k"), mnist_file.load(), strict=True):
            pixels = np.rint(images * 255)
            write_numbers(folder / f"{part}-images-idx3-ubyte", [2051, len(labels), 28, 28], pixels)
            write_numbers(folder / f"{part}-labels-idx1-ubyte", [2049, len(labels)], labels)
        (folder / "include/third_party").mkdir(parents=True)
        (folder / "include/third_party/stb").symlink_to(INCLUDE / "stb")

    @cache  # noqa: B019 - there is one object
    def built(self, program: Program) -> Path:
        if not all((INCLUDE / header).exists() for header in program.headers):
            skip_or_fail(f"there is no {program.folder}: apt-get install {program.packages}")
        includes = [f"-I{EXAMPLES / 'cpp'}", "-isystem", str(self.folder / "include")]
        source = EXAMPLES / program.folder / "digits.cc"
        binary = self.folder / f"{program.folder}-{program.dtype}"
        return compiled(source, binary, "-std=c++17", "-O2", *includes, *program.flags)

    def run(self, program: Program, ranks: int) -> subprocess.CompletedProcess[str]:
        binary = self.built(program)
        launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks)]
        command = [str(binary), str(self.folder), f"{binary}.weights"]
        return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=240)

    @cache  # noqa: B019 - there is one object
    def trained(self, program: Program, ranks: int) -> tuple[npt.NDArray[np.float64], float]:
        """Returns the weights at the end of training, and the test accuracy in percent."""
        result = self.run(program, ranks)
        assert result.returncode == 0, result.stdout + result.stderr
        found = re.search(rf"{ranks} processes: test accuracy ([\d.]+) %", result.stdout)
        assert found, result.stdout
        weights = np.fromfile(f"{self.built(program)}.weights", program.dtype)
        return weights.astype(np.float64), float(found[1])


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return Examples(tmp_path_factory.mktemp("digits"))


@pytest.mark.parametrize("program", MARKED)
def test_one_process_learns_the_digits(examples: Examples, program: Program) -> None:
    _, accuracy = examples.trained(program, 1)
    assert accuracy > WANTED_ACCURACY


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("program", MARKED)
def test_ranks_find_the_weights_of_one_process_with_whole_batches(
    examples: Examples, program: Program, ranks: int
) -> None:
    alone, _ = examples.trained(program, 1)
    weights, accuracy = examples.trained(program, ranks)
    np.testing.assert_allclose(weights, alone, rtol=0, atol=program.tolerance)
    assert accuracy > WANTED_ACCURACY


def test_with_dlib_a_batch_must_divide_evenly_among_the_ranks(examples: Examples) -> None:
    result = examples.run(PROGRAMS[-1], 7)
    assert result.returncode == 1
    assert "a batch of 60 cannot be divided evenly among 7 ranks" in result.stderr
