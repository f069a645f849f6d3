"""Every program of examples/, run as its docstring says, at 1 to 4 ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import several_programs

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
#: Imported by others.
SHARED = {
    "mnist_file.py",
    "mxnet/digits.py",
    "tensorflow/digits.py",
    "torch/checks.py",
    "torch/digits.py",
}

DIFFERS = r"differs by [\d.]+e-\d+ from one process"


@dataclass(frozen=True)
class Run:
    """A program, and a pattern of what rank 0 prints at its end."""

    program: str
    ranks: int
    prints: str = ""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # perseusrun's

    def __str__(self) -> str:
        return " ".join([self.program, *self.arguments, f"at {self.ranks}"])


BENCHMARK = "torch/02_synthetic_benchmark.py"
SPEED = r"Img/sec per CPU: [\d.]+ \+-[\d.]+\n.*CPU\(s\): [\d.]+ \+-[\d.]+$"
FEW = ("--num-iters", "2", "--num-batches-per-iter", "2", "--num-warmup-batches", "1")

RUNS = [
    Run("numpy/allreduce.py", 1, "rank 0's table"),
    Run("numpy/allreduce.py", 4, "rank 0's table"),
    Run(BENCHMARK, 1, SPEED, (*FEW, "--model", "vgg")),
    Run(BENCHMARK, 2, SPEED, (*FEW, "--model", "resnet", "--batch-size", "1", "--no-cuda")),
    Run(BENCHMARK, 3, SPEED, (*FEW, "--model", "mlp", "--fp16-allreduce")),
    Run(BENCHMARK, 2, SPEED, (*FEW, "--model", "mlp", "--use-adasum")),
    Run("torch/03_fp16_compression.py", 2, r"none: 30.4 MB.*\n.*fp16: 15.2 MB.*\n.*bf16: 15.2 MB"),
    Run("torch/04_process_sets.py", 1, "all 1 ranks go on with lr 0.08"),
    Run("torch/04_process_sets.py", 4, "all 4 ranks go on with lr 0.08"),
    Run("torch/05_join.py", 1, r"\[64\]; rank 0 joined last"),
    Run("torch/05_join.py", 2, r"\[64, 128\]; rank 1 joined last"),
    Run("torch/05_join.py", 4, r"\[64, 128, 192, 256\]; rank 3 joined last"),
    Run(
        "torch/06_adasum.py", 3, r"3 equal vectors: \[3.0, 4.0\]\n.*: \[2.0, 2.0, 2.0\]\n.*accuracy"
    ),
    Run("torch/10_pipeline.py", 2, r"bubble \d.*formula.*\n.*stage  rank.*[^$]*1 x 2 ranks: test"),
    Run(
        "torch/10_pipeline.py", 4, r"bubble \d.*formula.*\n.*replica  stage.*[^$]*2 x 2 ranks: test"
    ),
    Run(
        "torch/11_layerwise_dbn.py",
        3,
        r"initial network.* \d+\.\d %\n.*pre-trained network.* 8\d\.\d %",
    ),
    Run("tensorflow/01_custom_loop.py", 2, r"2 processes: test accuracy 9[\d.]+ %"),
    Run("tensorflow/02_transformer.py", 2, r"256 rows of 1000\n.*differ by [\d.]+e-\d+"),
    Run("tensorflow/03_session.py", 2, r"2 processes: test accuracy [89][\d.]+ % after 198 steps"),
    Run("keras/mnist.py", 2, r"2 processes: test accuracy 9[\d.]+ %"),
    Run("torch/07_ddp.py", 2, rf"backend: .*{DIFFERS}\n.*hook: .*{DIFFERS}$"),
]
SINGLE_PROCESS_STEP = "torch/08_migrating/1_single_process.py"
HOROVOD_STEP = "torch/08_migrating/2_horovod.py"
#: The steps that run as several ranks.
STEPS = [
    Run(HOROVOD_STEP, 2, options=("--drop-in",)),
    Run("torch/08_migrating/3_perseus.py", 3),
    Run("torch/08_migrating/4_overlap_forward.py", 4),
]
#: Those with tests of their own below.
OTHERS = {"mnist_demo.py", "torch/01_mnist.py", SINGLE_PROCESS_STEP}
AT_ONCE = ("--join", "at-once")
SHORT = ("--pause", "0.01", "--epochs", "4", "--wanted-accuracy", "0.85")
#: The elastic jobs. Steps have a pause, so that the list of hosts, which is read each second, can
#: change while they train.
ELASTIC = [
    # New ranks join when they are ready: 600 steps, or 30 s, leave them time to start, even on a
    # busy machine.
    Run("torch/09_elastic.py", 2, arguments=("--pause", "0.05")),
    # These take longer to start. The others wait for them.
    *(
        Run(program, 2, arguments=SHORT, options=AT_ONCE)
        for program in ("tensorflow/04_elastic.py", "keras/elastic.py")
    ),
]
#: Those of tests/python/mxnet_jobs, of tests/python/cpp_frameworks and of test_c_examples.py.
ELSEWHERE = {
    "c/allreduce.c",
    "c/hello.c",
    "c/training.c",
    "dlib/digits.cc",
    "mxnet/01_gluon.py",
    "mxnet/02_module.py",
    "mxnet/03_class_split.py",
    "tiny_dnn/digits.cc",
}


def started(program: str, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks)]
    command = [*launcher, sys.executable, str(EXAMPLES / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def framework(run: Run) -> str:
    """Returns the module that takes longest to import."""
    name = run.program.split("/")[0]
    return "tensorflow" if name == "keras" else name


def job(run: Run) -> tuple[str, int, tuple[str, ...]]:
    """Returns what the programs of one job have in common."""
    return framework(run), run.ranks, run.options


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Run], str]:
    """Returns what the ranks of an example print if it ends well. The examples of one framework run
    in one job for each number of ranks and options of the launcher."""
    found: dict[Run, several_programs.Ended] = {}

    def of(run: Run) -> str:
        if run not in found:
            like = [other for other in RUNS + STEPS if job(other) == job(run)]
            found.update(
                zip(
                    like,
                    several_programs.run(
                        run.ranks,
                        framework(run),
                        [[str(EXAMPLES / other.program), *other.arguments] for other in like],
                        tmp_path_factory.mktemp("pipes"),
                        timeout=290,
                        options=run.options,
                    ),
                    strict=True,
                )
            )
        ended = found[run]
        assert set(ended.statuses) == {0}, ended.stdout + ended.stderr
        assert "Warning" not in ended.stderr
        return ended.stdout.rstrip()

    return of


# The first of a job waits for all of it.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_an_example_does_what_it_says(run: Run, printed: Callable[[Run], str]) -> None:
    said = printed(run)
    assert re.search(run.prints, said), said


@pytest.fixture(scope="module")
def by_one_process() -> str:
    """Returns the result of step 1 of migrating. In float64, the others print the same digits."""
    program = EXAMPLES / SINGLE_PROCESS_STEP
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", STEPS, ids=str)
def test_each_step_of_migrating_finds_what_one_process_finds(
    run: Run, by_one_process: str, printed: Callable[[Run], str]
) -> None:
    assert f"{printed(run)}\n" == f"[0]<stdout>:{by_one_process}"


def test_mnist_learns_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    arguments = [
        "--epochs",
        "2",
        "--wanted-accuracy",
        "0.8",
        "--checkpoint",
        str(tmp_path / "{epoch}.pt"),
    ]
    whole = started("torch/01_mnist.py", 3, *arguments)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    accuracy = re.search(r"3 processes: test accuracy [\d.]+ %", whole.stdout)
    assert accuracy

    (tmp_path / "2.pt").unlink()
    resumed = started("torch/01_mnist.py", 3, *arguments)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resuming after epoch 1" in resumed.stdout
    assert "epoch 1: loss" not in resumed.stdout
    assert accuracy[0] in resumed.stdout


def test_mnist_fails_where_it_has_not_learnt() -> None:
    result = started("torch/01_mnist.py", 1, "--epochs", "0")
    assert result.returncode == 1
    assert "the test accuracy is below 95 %" in result.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("run", ELASTIC, ids=str)
def test_elastic_training_sees_each_image_once_while_ranks_come_and_go(
    run: Run, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(run.ranks), "--min-np", "1"]
    launcher += ["--watch-hostfile", str(hosts), *run.options]
    command = [*launcher, sys.executable, str(EXAMPLES / run.program), *run.arguments]
    changes = {"epoch 0: 2 ranks": "localhost:2\n127.0.0.1:1\n", ": 3 ranks": "127.0.0.1:1\n"}
    changes[": 3 ranks"] += "localhost:1\n"
    said = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            said += line
            for words in [words for words in changes if words in line]:
                hosts.write_text(changes.pop(words))
    assert job.returncode == 0, said
    assert not changes, said
    ending = r"2 ranks at the end: test accuracy [89][\d.]+ %\n.*images in each"
    assert re.search(ending, said), said


@pytest.mark.timeout(600)
def test_the_demo_compares_one_process_with_two() -> None:
    demo = [sys.executable, str(EXAMPLES / "mnist_demo.py")]
    demo += ["--epochs", "2", "--wanted-accuracy", "0.8"]
    result = subprocess.run(demo, capture_output=True, text=True, timeout=560)
    assert result.returncode == 0, result.stdout + result.stderr
    # The same accuracy, and parameters that differ by what rounding explains.
    assert re.search(r"test accuracy +(\d+\.\d) % +\1 %\n", result.stdout), result.stdout


def test_a_script_for_horovod_needs_the_drop_in() -> None:
    result = started(HOROVOD_STEP, 1)
    assert result.returncode == 1
    assert "No module named 'horovod'" in result.stderr


def programs() -> set[str]:
    files = [file for kind in ("*.py", "*.c", "*.cc") for file in EXAMPLES.rglob(kind)]
    return {str(file.relative_to(EXAMPLES)) for file in files} - SHARED


def test_every_example_is_run() -> None:
    assert programs() == {run.program for run in RUNS + STEPS + ELASTIC} | OTHERS | ELSEWHERE


def test_the_examples_run_at_1_to_4_ranks() -> None:
    assert {run.ranks for run in RUNS} == {1, 2, 3, 4}


def _is_without_framework(name: str) -> bool:
    return name.startswith(("numpy", "c/"))


def test_the_list_of_examples_has_them_in_order() -> None:
    rows = r"^\| \[\S+\]\((\S+)\) \| \S"
    listed = re.findall(rows, (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed, key=_is_without_framework) == listed
    assert set(listed) == programs() - {"mnist_demo.py"}
    in_torch = [name for name in listed if name.startswith("torch/")]
    assert in_torch == sorted(in_torch)


@pytest.mark.parametrize("program", sorted(programs()))
def test_an_example_says_how_it_is_started(program: str) -> None:
    text = (EXAMPLES / program).read_text()
    assert re.search(rf"(python|torchrun|perseusrun).*{Path(program).stem}|make demo", text)
