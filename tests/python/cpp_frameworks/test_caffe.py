"""frameworks/caffe over a stand-in for Caffe (tests/caffe_standin), at 1 to 4 ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiling import compiled
from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "tests/caffe_standin/solver_test.cc"
CUDA = ROOT / "build/dev/tests/standin/lib"
ROWS = 12  # in an iteration's backward pass, on all ranks together

IP2_TO_IP4 = "1.ip4: ip4/0 ip4/1, 1.ip3: ip3/0 ip3/1, 1.ip2: ip2/0 ip2/1"
ALL = f"{IP2_TO_IP4}, 1.ip1: ip1/0 ip1/1"
#: Options of the program, and the gradients that it submits after each layer of each pass.
NETS = {
    "": ALL,
    "--float": ALL,
    "--iter-size 2": ALL.replace("1.ip", "2.ip"),
    "--shared": "1.ip4: ip4/0 ip4/1, 1.ip2: ip2/0 ip2/1, 1.ip1: ip1/0 ip1/1",
    "--frozen": IP2_TO_IP4,
    # Its norm counts, so it is averaged, learnt or not.
    "--frozen --clip": ALL,
    # Nothing tells that backward has come to ip1.
    "--frozen --clip --skip": f"{IP2_TO_IP4}, end: ip1/0 ip1/1",
    "--shared --frozen --iter-size 3": "3.ip4: ip4/0 ip4/1, 3.ip2: ip2/0 ip2/1",
}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("caffe") / "solver_test"
    return compiled(SOURCE, program, "-std=c++11", "-O1", f"-I{SOURCE.parent}")


class Solvers:
    """Runs the program as the ranks of a job."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder

    def run(
        self, ranks: int, options: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks)]
        command = [str(self.program), str(self.weights_file(ranks)), "--batch", str(ROWS // ranks)]
        return subprocess.run(
            [*launcher, *command, *options.split()],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=30,
        )

    def weights(
        self, ranks: int, options: str, environment: dict[str, str] | None = None
    ) -> tuple[np.ndarray, set[str]]:
        """Returns the weights, equal on all ranks, and the orders in which they were submitted."""
        result = self.run(ranks, options, environment)
        assert result.returncode == 0, result.stdout + result.stderr
        orders = re.findall(r"<stdout>:order: (.*)", result.stdout)
        assert len(orders) == ranks, result.stdout
        files = [Path(f"{self.weights_file(ranks)}.{rank}") for rank in range(ranks)]
        weights = [np.fromfile(file) for file in files]
        for others in weights[1:]:
            np.testing.assert_array_equal(others, weights[0])
        return weights[0], set(orders)

    def failures(self, ranks: int, options: str) -> dict[int, str]:
        """Returns each rank's stderr, for a job that must fail."""
        result = self.run(ranks, options)
        assert result.returncode == (3 if "dies" in options else 1), result.stdout + result.stderr
        said = re.findall(r"\[(\d)\]<stderr>:(perseus: .*)", result.stderr)
        return {int(rank): text for rank, text in said}

    def weights_file(self, ranks: int) -> Path:
        return self.folder / f"weights-{ranks}"


@pytest.fixture
def solvers(program: Path, tmp_path: Path) -> Solvers:
    return Solvers(program, tmp_path)


@pytest.mark.parametrize("options", NETS)
def test_ranks_learn_what_one_process_learns_of_all_rows(solvers: Solvers, options: str) -> None:
    alone, orders = solvers.weights(1, options)
    assert orders == {NETS[options]}
    tolerance = 2e-5 if "float" in options else 1e-13
    for ranks in 2, 3, 4:
        weights, orders = solvers.weights(ranks, options)
        assert orders == {NETS[options]}
        np.testing.assert_allclose(weights, alone, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("operations", ["nccl", "staged"])
def test_gradients_on_gpus(solvers: Solvers, operations: str) -> None:
    if not (CUDA / "libcuda.so.1").exists():
        skip_or_fail(f"there is no stand-in for CUDA in {CUDA}: run `make cpp-tests`")
    environment = {
        "PERSEUS_CUDA_LIBRARY_PATH": str(CUDA),
        "PERSEUS_STANDIN_DELAY_US": "200",
        "PERSEUS_GPU_OPERATIONS": operations,
    }
    alone, _ = solvers.weights(1, "--iter-size 2 --shared")
    options = "--iter-size 2 --shared --gpu"
    weights, orders = solvers.weights(3, options, environment)
    assert orders == {"2.ip4: ip4/0 ip4/1, 2.ip2: ip2/0 ip2/1, 2.ip1: ip1/0 ip1/1"}
    np.testing.assert_allclose(weights, alone, rtol=1e-13, atol=1e-13)


def test_a_rank_that_dies_is_named_with_a_gradient(solvers: Solvers) -> None:
    failures = solvers.failures(3, "--rank-1 dies")
    assert set(failures) == {0, 2}
    for rank, text in failures.items():
        assert re.match(
            rf"perseus: rank {rank}: the gradient of 'ip\d/\d' in iteration 2.*: .*rank 1", text
        ), text


def test_a_rank_with_another_shape_is_an_error_on_all(solvers: Solvers) -> None:
    failures = solvers.failures(3, "--rank-1 is-wider")
    assert set(failures) == {0, 1, 2}
    for text in failures.values():
        assert "on rank 0 parameter 0 is 'ip1/0', of 6 5, trained, and on rank 1 " in text
        assert "rank 1 parameter 0 is 'ip1/0', of 7 5, trained;" in text


@pytest.mark.parametrize(
    ("rank_1", "what"),
    [
        (
            "is-frozen",
            r"the ranks differ: on rank 0 parameter (\d) is '(\S+)', of [\d ]+, trained, "
            r"and on rank 1 parameter \1 is '\2', of [\d ]+, frozen;",
        ),
        (
            "is-ahead",
            "on rank 0 it goes on from iteration 0, and on rank 1 it goes on from iteration 5;",
        ),
    ],
)
def test_ranks_that_would_wait_for_each_other_do_not_begin(
    solvers: Solvers, rank_1: str, what: str
) -> None:
    failures = solvers.failures(2, f"--rank-1 {rank_1}")
    assert set(failures) == {0, 1}
    for text in failures.values():
        assert re.search(what, text), text


def test_a_solver_without_init_is_an_error(solvers: Solvers) -> None:
    (text,) = solvers.failures(1, "--without-init").values()
    assert "call perseus::caffe::init() before the solver is made" in text
