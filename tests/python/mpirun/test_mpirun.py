"""Programs started by a real mpirun: pytest tests/python/mpirun, with one on the path.

Each test starts it by itself; tests/python/mpi and tests/python/parallel run inside its ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mpirun_with_eavesdropper
import pytest
from compiling import compiled

import perseus.run

pytest.importorskip("torch")
if shutil.which("mpirun") is None:
    pytest.skip("there is no mpirun on the path", allow_module_level=True)

DROP_IN = [sys.executable, "-m", "perseus.dropin"]


def mpirun(ranks: int) -> list[str]:
    return ["mpirun", "-np", str(ranks)]


def perseusrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "perseus.run", "-np", str(ranks)]


TRAIN = """
import sys
import torch
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(3, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
before = model.weight.detach().clone()
model(torch.full([1, 3], float(hvd.rank()))).sum().backward()
optimizer.step()
moved = (before - model.weight.detach()).round(decimals=5).tolist()
sys.stdout.write(f"{hvd.rank()} of {hvd.size()}: {moved} {sys.argv[1:]} {__name__}\\n")
"""
TRAINED = [f"{rank} of 2: [[0.5, 0.5, 0.5]] ['--lr', '1 2'] __main__" for rank in range(2)]

WITH_MPI4PY = """
import sys
from mpi4py import MPI
import torch
import horovod.torch as hvd

comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_rank() % 2, 0)
hvd.init(comm=comm)
total = hvd.allreduce(torch.tensor(MPI.COMM_WORLD.Get_rank()), op=hvd.Sum).item()
sys.stdout.write(f"{hvd.rank()} of {hvd.size()}: {total}\\n")
"""

# Horovod's documentation of mpi4py begins so.
BESIDE_MPI4PY = """
import sys
import horovod.torch as hvd

hvd.init()
assert hvd.mpi_threads_supported()
from mpi4py import MPI
assert hvd.size() == MPI.COMM_WORLD.Get_size()
sys.stdout.write(f"{hvd.rank()}: {hvd.mpi_enabled()} {hvd.gloo_enabled()}\\n")
"""

# Rank 2 is left out, but launched by MPI like the others.
AFTER_MPI4PY = """
import sys
import mpi4py
mpi4py.rc.thread_level = sys.argv[1]
from mpi4py import MPI
import horovod.torch as hvd

hvd.init([0, 1])
multiple = MPI.Query_thread() == MPI.THREAD_MULTIPLE
assert hvd.mpi_threads_supported() == multiple
sys.stdout.write(f"{hvd.rank()} of {hvd.size()}: {hvd.mpi_enabled()} {multiple}\\n")
"""

MEETS = """
import sys
import torch
import torch.distributed as dist
import perseus.torch

dist.init_process_group(sys.argv[1])
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"{dist.get_rank()} of {dist.get_world_size()}: {total.item()}\\n")
dist.destroy_process_group()
"""


# Each rank spawns two processes, whose numbers are those of mpirun's ranks by chance.
SPAWNS = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import perseus.torch

def work(rank, file):
    dist.init_process_group("perseus", init_method=f"file://{file}", rank=rank, world_size=2)
    total = torch.ones(1)
    dist.all_reduce(total)
    sys.stdout.write(f"{dist.get_rank()} of {dist.get_world_size()}: {total.item()}\\n")
    dist.destroy_process_group()

if __name__ == "__main__":
    perseus.torch.init()
    mp.spawn(work, args=(f"{sys.argv[1]}/{perseus.torch.rank()}",), nprocs=2)
"""

WHO_AM_I = """
import sys
import torch
import perseus.torch.horovod as hvd

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
sys.stdout.write(f"{hvd.rank()} of {hvd.size()}, {total:g}: {hvd.mpi_enabled()}\\n")
"""


def torchrun(ranks: int) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(ranks)]


def run(*command: str) -> list[str]:
    """Returns what the ranks said, without their tags, sorted."""
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return sorted(line.rpartition("<stdout>:")[2] for line in result.stdout.splitlines())


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


def test_a_script_for_horovod_by_mpirun(program: Path) -> None:
    program.write_text(TRAIN)
    said = run(*mpirun(2), *DROP_IN, str(program), "--lr", "1 2")
    assert said == TRAINED


def test_a_module_for_horovod_by_mpirun(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.write_text(TRAIN)
    monkeypatch.chdir(program.parent)
    assert run(*mpirun(2), *DROP_IN, "-m", "program", "--lr", "1 2") == TRAINED


def test_a_script_for_horovod_by_perseusrun(program: Path) -> None:
    program.write_text(TRAIN)
    command = [*perseusrun(2), "--mpi", "--drop-in", sys.executable, str(program)]
    assert run(*command, "--lr", "1 2") == TRAINED


def test_a_script_for_horovod_that_parts_the_world_with_mpi4py(program: Path) -> None:
    program.write_text(WITH_MPI4PY)
    said = run(*mpirun(4), *DROP_IN, str(program))
    assert said == ["0 of 2: 2", "0 of 2: 4", "1 of 2: 2", "1 of 2: 4"]


@pytest.mark.parametrize("launcher", ["mpirun", "perseusrun"])
def test_a_script_for_horovod_that_uses_mpi4py_too(program: Path, launcher: str) -> None:
    program.write_text(BESIDE_MPI4PY)
    by_mpirun = [*mpirun(2), *DROP_IN]
    by_perseusrun = [*perseusrun(2), "--mpi", "--drop-in", sys.executable]
    said = run(*(by_mpirun if launcher == "mpirun" else by_perseusrun), str(program))
    assert said == [f"{rank}: True False" for rank in range(2)]


@pytest.mark.parametrize("level, multiple", [("multiple", True), ("funneled", False)])
def test_threads_as_mpi4py_asked_for_them(program: Path, level: str, multiple: bool) -> None:
    program.write_text(AFTER_MPI4PY)
    said = run(*mpirun(3), *DROP_IN, str(program), level)
    places = ["0 of 1", *(f"{rank} of 2" for rank in range(2))]
    assert said == [f"{place}: True {multiple}" for place in places]


def test_a_communicator_where_mpi_has_not_launched_the_ranks_is_an_error(program: Path) -> None:
    program.write_text(WITH_MPI4PY)
    command = [*perseusrun(2), "--drop-in", sys.executable, str(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 1
    assert "MPI knows of 1 of the 2 processes of this job (PERSEUS_SIZE)" in result.stderr


@pytest.mark.parametrize("backend", ["perseus", "gloo"])
def test_torch_distributed_finds_its_ranks(program: Path, backend: str) -> None:
    program.write_text(MEETS)
    said = run(*perseusrun(2), "--mpi", sys.executable, str(program), backend)
    assert said == [f"{rank} of 2: 2.0" for rank in range(2)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            ("agent", 1, "flip"),
            r"the connection to host \S+ \(rank 1\) ended: what its agent said a",
        ),
        (
            ("agent", 1, "drop"),
            r"the connection to host \S+ \(rank 1\) ended: what its agent said a",
        ),
        (("launcher", 1, "flip", 1), r"rank 1 on host \S+: what perseusrun said arrived otherwise"),
        (
            ("elsewhere",),
            r"rank [01] on host \S+ is not started: it called .* came to another address",
        ),
    ],
)
def test_a_program_in_between_can_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...], error: str
) -> None:
    if not mpirun_with_eavesdropper.can_eavesdrop():
        pytest.skip("networks cannot be made here")
    mpirun_with_eavesdropper.write_mpirun(tmp_path, str(shutil.which("mpirun")), *change)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = "import time; print(*range(1 << 18), flush=True); time.sleep(1000)"
    command = [*perseusrun(2), "--mpi", sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode not in (0, None)
    assert re.search(error, result.stderr + result.stdout), result.stderr + result.stdout[-2000:]


@pytest.mark.parametrize("ranks", [1, 3])
def test_torchrun_below_mpirun_is_the_launcher(program: Path, ranks: int) -> None:
    program.write_text(WHO_AM_I)
    said = run(*mpirun(2), *torchrun(ranks), str(program))
    assert said == sorted([f"{rank} of {ranks}, {ranks}: False" for rank in range(ranks)] * 2)


def test_mpirun_below_torchrun_or_perseusrun_is_the_launcher(program: Path) -> None:
    program.write_text(WHO_AM_I)
    starts = program.with_name("starts.py")
    command = [*mpirun(2), sys.executable, str(program)]
    starts.write_text(f"import subprocess\nsubprocess.run({command}, check=True)\n")
    expected = sorted(["0 of 2, 2: True", "1 of 2, 2: True"] * 2)
    assert run(*torchrun(2), str(starts)) == expected
    assert run(*perseusrun(2), str(starts)) == expected


def test_perseusrun_below_mpirun_is_the_launcher(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")  # Open MPI gives perseusrun a terminal
    program.write_text(WHO_AM_I)
    said = run(*mpirun(2), *perseusrun(2), str(program))
    assert said == sorted(["0 of 2, 2: False", "1 of 2, 2: False"] * 2)


def test_processes_that_a_rank_of_mpirun_spawns_form_a_world_of_their_own(program: Path) -> None:
    program.write_text(SPAWNS)
    said = run(*mpirun(2), sys.executable, str(program), str(program.parent))
    assert said == sorted(["0 of 2: 2.0", "1 of 2: 2.0"] * 2)


def test_a_function_runs_on_every_rank() -> None:
    def place() -> tuple[int, int, int]:
        import numpy

        import perseus_core

        perseus_core.init()
        one = numpy.array(perseus_core.rank() + 1)
        total = perseus_core.allreduce(one, perseus_core.ReduceOp.SUM)
        return perseus_core.rank(), perseus_core.size(), int(total)

    results = perseus.run.run(place, num_proc=3, use_mpi=True)
    assert results == [(0, 3, 6), (1, 3, 6), (2, 3, 6)]


ENDS_EARLY = """
#include <perseus/perseus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void leave(void* user, perseus_handle_t handle, perseus_status_t status, const char* text) {
  exit(1);
}

/* Rank 1 makes the first operation and ends: by main's return, or in a callback. */
int main(int count, char** arguments) {
  float value = 1;
  const int64_t shape = 1;
  const perseus_tensor_t tensor = {&value, &value, &shape, 1, PERSEUS_FLOAT32};
  perseus_submission_t submission = {.struct_size = sizeof submission, .tensor_count = 1,
                                     .tensors = &tensor, .prescale = 1, .postscale = 1};
  perseus_handle_t handle;
  perseus_init(NULL);
  const int ends = perseus_rank() == 1;
  perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, "first", &submission.id);
  if (ends && strcmp(arguments[1], "callback") == 0) submission.callback = leave;
  perseus_submit(&submission, &handle);
  perseus_wait(handle, -1);
  if (ends && submission.callback == NULL) return 1;
  perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, "second", &submission.id);
  submission.callback = NULL;
  perseus_submit(&submission, &handle);
  perseus_wait(handle, -1);
  fprintf(stderr, "rank %d: %s\\n", (int)perseus_rank(), perseus_last_error());
  return 1;
}
"""


@pytest.mark.parametrize("way", ["return", "callback"])
def test_a_rank_that_ends_without_shutdown_does_not_keep_the_job(tmp_path: Path, way: str) -> None:
    source = tmp_path / "ends.c"
    source.write_text(ENDS_EARLY)
    program = compiled(source, tmp_path / "ends", "-Wno-unused-parameter")
    for launcher in (mpirun(4), perseusrun(4)):
        result = subprocess.run(
            [*launcher, program, way], capture_output=True, text=True, timeout=60
        )
        assert result.returncode != 0
        # mpirun may end the others before they have said it.
        assert launcher[0] == "mpirun" or "rank 1" in result.stderr


# Its own use of MPI makes the linker copy MPI_COMM_WORLD's object into the executable.
USES_MPI = """
#include <mpi.h>
#include <perseus/perseus.h>
#include <stdio.h>

int main(int count, char** arguments) {
  int level = 0, rank = -1, size = 0;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (perseus_init(NULL) != PERSEUS_OK) {
    fprintf(stderr, "%s\\n", perseus_last_error());
    return 1;
  }
  printf("%s\\n", perseus_rank() == rank && perseus_size() == size ? "well" : "elsewhere");
  perseus_shutdown();
  MPI_Finalize();
  return 0;
}
"""


def test_a_program_in_c_that_uses_mpi_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "mpicc")
    source = tmp_path / "uses.c"
    source.write_text(USES_MPI)
    program = compiled(source, tmp_path / "uses")
    result = subprocess.run([*mpirun(4), program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("well") == 4


def test_a_program_in_c_is_started_by_both_alike(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[3] / "examples/c/training.c"
    program = compiled(source, tmp_path / "training")
    for launcher in (mpirun(4), perseusrun(4), [*perseusrun(4), "--mpi"]):
        result = subprocess.run(
            [*launcher, program], capture_output=True, text=True, timeout=240, check=True
        )
        assert "4 processes: 97." in result.stdout


#: Rank 1 fails once rank 0 can save its work.
SAVES = """
import os, pathlib, signal, sys, time
ready = pathlib.Path("ready")
def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)
if os.environ["RANK"] == "1":
    while not ready.exists(): time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
ready.touch()
while True: time.sleep(100)
"""


@pytest.mark.parametrize("grace", [0, 60])
def test_a_rank_under_perseusrun_may_save_its_work(grace: int, tmp_path: Path) -> None:
    result = subprocess.run(
        [*perseusrun(2), "--mpi", "--grace", str(grace), sys.executable, "-S", "-c", SAVES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert result.returncode == 3, result.stderr
    assert result.stdout == ("[0]<stdout>:saved\n" if grace else "")
