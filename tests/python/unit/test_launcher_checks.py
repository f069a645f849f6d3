"""What perseusrun checks before it starts a rank, and what it says; with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perseus.run import run
from perseus.run.raised import RemoteTraceback
from perseus_core import processors

#: A program that leaves a file if it is started.
STARTED = "open('started', 'w').close()"


def perseusrun(
    *arguments: str, folder: Path, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return subprocess.run(
        [sys.executable, "-m", "perseus.run", *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.getcwd(), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(STARTED)
    return file


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["-H", ""], {}, "'' names no host"),
        (["--hostfile", ""], {}, "cannot read hostfile"),
        (["--output-filename", ""], {}, "--output-filename '' names no folder"),
        (["--output-filename", "/proc/x"], {}, "the folder /proc/x cannot be made: No such file"),
        (
            ["--output-filename", "script.py"],
            {},
            "the folder script.py cannot be made: Not a directory",
        ),
        (
            ["-H", "other:2"],
            {"PATH": "/nowhere"},
            "ssh is needed to reach host other, but there is",
        ),
        (
            ["--timeline-filename", "nowhere/t.json"],
            {},
            "PERSEUS_TIMELINE is 'nowhere/t.json', whose folder does not exist; make it first",
        ),
        (
            [],
            {"HOROVOD_AUTOTUNE_LOG": "/nowhere/t.csv"},
            "HOROVOD_AUTOTUNE_LOG is '/nowhere/t.csv'",
        ),
        (["--config-file", "no.yaml"], {}, "cannot read config file 'no.yaml': No such file"),
        ([], {"PERSEUSRUN_RSH": "ssh '"}, 'PERSEUSRUN_RSH is "ssh \'": No closing quotation'),
        (
            [],
            {"PERSEUS_ALLREDUCE_STREAMS": "many"},
            "PERSEUS_ALLREDUCE_STREAMS='many' is not a whole",
        ),
        ([], {"HOROVOD_FUSION_THRESHOLD": "x"}, "HOROVOD_FUSION_THRESHOLD"),
        (["--fusion-treshold-mb", "3"], {}, "did you mean --fusion-threshold-mb?"),
        (["--nonsense"], {}, "there is no flag --nonsense\n"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(
    script: Path, arguments: list[str], variables: dict[str, str], said: str
) -> None:
    done = perseusrun(
        "-np", "2", *arguments, "script.py", folder=script.parent, variables=variables
    )
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("usage:")]
    assert len(lines) == 1, done.stderr
    assert said in done.stderr
    assert not (script.parent / "started").exists()


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -m perseus.run -np 1 true"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        ["sh", "-c", command], cwd=gone, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("perseusrun: the working directory"), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_ends_no_job(script: Path) -> None:
    script.write_text("print('x')")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perseus.run", "-np", "1", str(script)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert "the ranks' output can no longer be shown: No space left on device" in done.stderr


def test_a_script_and_a_module_run_in_perseusruns_python(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    for what in (["shown.py"], ["-m", "shown"]):
        done = perseusrun("-np", "1", *what, "--flag", folder=tmp_path)
        assert done.stdout == f"[0]<stdout>:{sys.executable} ['--flag']\n", done.stderr


def test_a_python_without_perseus_is_named(script: Path) -> None:
    python = script.parent / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    path = {"PATH": f"{script.parent}:{os.environ['PATH']}"}
    done = perseusrun("-np", "1", "python", "script.py", folder=script.parent, variables=path)
    assert done.returncode == 0
    assert f"python is {python}, which has no perseus; this perseusrun belongs to" in done.stderr
    done = perseusrun("-np", "1", sys.executable, "script.py", folder=script.parent)
    assert done.stderr == ""


def test_ranks_share_the_processors_of_their_host(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text("import os; print(os.environ.get('OMP_NUM_THREADS'))")
    each = max(1, processors.usable() // 2)
    done = perseusrun("-np", "2", "threads.py", folder=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[0]<stdout>:{each}", f"[1]<stdout>:{each}"]
    assert done.stderr == (
        f"perseusrun: OMP_NUM_THREADS is not set, so each rank gets {each}: the "
        f"{processors.usable()} processors here, divided by the 2 ranks\n"
    )
    given = {"OMP_NUM_THREADS": "7"}
    done = perseusrun("-np", "2", "threads.py", folder=tmp_path, variables=given)
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:7", "[1]<stdout>:7"]
    assert done.stderr == ""
    done = perseusrun("-np", "1", "threads.py", folder=tmp_path)
    assert (done.stdout, done.stderr) == ("[0]<stdout>:None\n", "")


FRAMEWORK = {
    "torch": "import torch; import perseus.torch.horovod as hvd; threads = torch.get_num_threads",
    "tensorflow": "import tensorflow as tf; import perseus.tensorflow.horovod as hvd; "
    "threads = tf.config.threading.get_intra_op_parallelism_threads",
}


@pytest.mark.parametrize("framework", FRAMEWORK)
def test_without_the_variable_an_adapter_shares_the_processors(
    framework: str, tmp_path: Path
) -> None:
    """As under mpirun, which sets no such variable."""
    (tmp_path / "train.py").write_text(
        f"import os; del os.environ['OMP_NUM_THREADS']; {FRAMEWORK[framework]}\n"
        "hvd.init(); print(threads())"
    )
    each = max(1, processors.usable() // 2)
    done = perseusrun("-np", "2", "train.py", folder=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[0]<stdout>:{each}", f"[1]<stdout>:{each}"]
    said = [line for line in done.stderr.splitlines() if "is not set, so" in line]
    assert len(said) == 2 and said[1].startswith("[0]<stderr>:perseus: OMP_NUM_THREADS"), (
        done.stderr
    )


def test_a_number_of_threads_that_the_script_has_chosen_stays(tmp_path: Path) -> None:
    other = 2 * processors.usable() + 1
    (tmp_path / "train.py").write_text(
        "import os; del os.environ['OMP_NUM_THREADS']; import torch\n"
        f"torch.set_num_threads({other}); import perseus.torch.horovod as hvd\n"
        "hvd.init(); print(torch.get_num_threads())"
    )
    done = perseusrun("-np", "2", "train.py", folder=tmp_path)
    assert sorted(done.stdout.splitlines()) == [f"[0]<stdout>:{other}", f"[1]<stdout>:{other}"]


def test_run_carries_the_exception_of_the_rank() -> None:
    def fail() -> None:
        raise KeyError("which")

    with pytest.raises(
        RuntimeError, match=r"rank 0 .* exited with code 1: KeyError: 'which'"
    ) as it:
        run(fail, num_proc=1)
    cause = it.value.__cause__
    assert isinstance(cause, KeyError) and cause.args == ("which",)
    assert "in fail" in str(cause.__cause__)


def test_an_exception_that_cannot_be_pickled_is_shown_by_its_traceback() -> None:
    def fail() -> None:
        class Local(Exception):
            def __reduce__(self) -> str:
                raise TypeError("cannot be pickled")

        raise Local("odd")

    with pytest.raises(RuntimeError, match="Local: odd") as it:
        run(fail, num_proc=1)
    assert isinstance(it.value.__cause__, RemoteTraceback)
    assert "raise Local" in str(it.value.__cause__)


def test_a_result_that_cannot_be_pickled_is_an_error_of_the_rank() -> None:
    with pytest.raises(RuntimeError, match="cannot pickle 'generator' object") as it:
        run(lambda: (number for number in range(3)), num_proc=1)
    assert isinstance(it.value.__cause__, TypeError)


def test_a_function_that_ends_its_process_has_no_result() -> None:
    with pytest.raises(RuntimeError, match="rank 0 exited with code 0 before its function"):
        run(lambda: sys.exit(0), num_proc=1)
