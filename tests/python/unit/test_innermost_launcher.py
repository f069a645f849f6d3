"""Which launcher counts where several have left their variables: the innermost one.

The launchers other than torchrun and perseusrun are played by an environment: what matters is what
their processes inherit. Real ones are in tests/python/mpirun and tests/python/hosts/test_srun.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import find_free_ports

pytest.importorskip("torch")

WHO_AM_I = """
import torch, perseus.torch.horovod as hvd
hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
print(f"rank {hvd.rank()} of {hvd.size()}, {total:g} by MPI: {hvd.mpi_enabled()}", flush=True)
"""
#: What processes find that these launchers have started as rank 1 of 2.
OUTER = {
    "MPICH": {"PMI_RANK": "1", "PMI_SIZE": "2"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "PMIX_RANK": "1",
        "PMIX_NAMESPACE": "prterun-1@1",
    },
    "srun": {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7",
    },
    "one process": {"PMI_RANK": "0", "PMI_SIZE": "1"},
}
OUTER["srun, pmi2"] = OUTER["srun"] | OUTER["MPICH"]
OUTER["srun, pmix"] = OUTER["srun"] | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"}


def environment(**variables: str) -> dict[str, str]:
    prefixes = ("PERSEUS_", "HOROVOD_", "TORCHELASTIC_", "SLURM_", "PMI", "OMPI_", "MASTER_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(prefixes) and name not in names
    }
    return {**kept, "PERSEUS_START_TIMEOUT": "60", **variables}


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=200
    )


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "who_am_i.py"
    file.write_text(WHO_AM_I)
    return str(file)


def torchrun(ranks: int, *command: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(ranks), *command]


def expect_world(result: subprocess.CompletedProcess[str], size: int, times: int = 1) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    # Lines of several processes may be mixed, but nothing within a write of theirs.
    lines = sorted(re.findall(r"rank \d+ of \d+, \d+ by MPI: (?:True|False)", result.stdout))
    expected = [f"rank {rank} of {size}, {size} by MPI: False" for rank in range(size)] * times
    assert lines == sorted(expected), result.stdout + result.stderr


@pytest.mark.parametrize(
    ("outer", "ranks"),
    [
        ("one process", 2),
        ("MPICH", 1),
        ("MPICH", 2),
        ("Open MPI", 3),
        ("srun", 4),
        ("srun, pmi2", 2),
        ("srun, pmix", 3),
    ],
)
def test_torchrun_below_another_launcher(script: str, outer: str, ranks: int) -> None:
    expect_world(run(torchrun(ranks, script), **OUTER[outer]), ranks)


@pytest.mark.parametrize("outer", ["MPICH", "srun, pmi2"])
def test_perseusrun_below_another_launcher(script: str, outer: str) -> None:
    command = [sys.executable, "-m", "perseus.run", "-np", "2", "--no-tag", sys.executable, script]
    expect_world(run(command, **OUTER[outer]), 2)


def test_torchrun_and_perseusrun_below_each_other(script: str) -> None:
    perseusrun = [sys.executable, "-m", "perseus.run", "-np", "2", "--no-tag"]
    expect_world(run([*perseusrun, *torchrun(2, script)]), 2, times=2)
    module = ["-m", "perseus.run", "-np", "2", "--no-tag", sys.executable, script]
    expect_world(run(torchrun(2, *module)), 2, times=2)


def alone(**variables: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", WHO_AM_I], **variables)


def test_launchers_that_contradict_each_other_are_both_named() -> None:
    torch = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    result = alone(**OUTER["MPICH"], **torch)
    assert result.returncode != 0
    for part in (
        "rank 1 of 2 by",
        "PMI_RANK and PMI_SIZE",
        "rank 0 of 4 by",
        "RANK and WORLD_SIZE",
    ):
        assert part in result.stderr


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set, though WORLD_SIZE=2 says that there are several"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "does not follow from them without NODE_RANK"),
        (
            {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"},
            "does not follow from them without LOCAL_WORLD_SIZE; set RANK",
        ),
        ({"RANK": "1", "MASTER_ADDR": "127.0.0.1"}, "WORLD_SIZE is not set, though RANK"),
    ],
)
def test_what_says_that_there_are_several_ranks_is_no_world_of_one(
    variables: dict[str, str], told: str
) -> None:
    result = alone(**variables)
    assert result.returncode != 0
    assert f"ValueError: {told}" in result.stderr or told in result.stderr


@pytest.mark.parametrize(
    ("hosts", "more"),
    [
        (1, {"NODE_RANK": "0"}),  # as Lightning's launcher
        (1, {"LOCAL_WORLD_SIZE": "2"}),
        (2, {"LOCAL_WORLD_SIZE": "2", "NODE_RANK": ""}),
        (2, {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": ""}),
    ],
)
def test_a_rank_follows_from_the_place_on_its_host(hosts: int, more: dict[str, str]) -> None:
    """The hosts are this one, which does not matter."""
    port = str(find_free_ports(1)[0])
    size = 2 * hosts
    processes = []
    for rank in range(size):
        variables = {name: value or str(rank // 2) for name, value in more.items()}
        variables |= {"WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % 2)}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", WHO_AM_I],
                env=environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for rank, process in enumerate(processes):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        assert stdout.strip() == f"rank {rank} of {size}, {size} by MPI: False"
