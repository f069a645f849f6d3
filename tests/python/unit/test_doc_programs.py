"""The programs that pages of docs/ show do what the pages say.

Those of MXNet are run by its adapter's tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from compiling import compiled

import perseus_core

DOCS = Path(__file__).resolve().parents[3] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """Returns the fenced blocks of a page in a language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


def block(page: str, language: str, beginning: str) -> str:
    """Returns the one block that begins with this text."""
    [found] = [each for each in blocks(page, language) if each.startswith(beginning)]
    return found


def perseusrun(*command: str) -> str:
    launcher = [sys.executable, "-m", "perseus.run", "-np", "2"]
    result = subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run(program: str, folder: Path) -> str:
    path = folder / "program.py"
    path.write_text(program)
    return perseusrun(sys.executable, str(path))


def test_quick_start_with_pytorch(tmp_path: Path) -> None:
    printed = run(block("quickstart.md", "python", "import torch"), tmp_path)
    means = re.findall(r"rank \d of 2: own loss 0\.\d+, mean (0\.\d+)", printed)
    assert len(means) == 2
    assert means[0] == means[1]
    assert float(means[0]) < 0.1


def test_elastic_training_with_pytorch(tmp_path: Path) -> None:
    program = block(
        "torch.md", "python", "import torch\n\nimport perseus.torch.horovod as hvd\n\nhvd.init()\nx"
    )
    printed = run(program, tmp_path)
    ends = re.findall(r"rank \d: loss (0\.\d+), bias (\S+)", printed)
    assert len(ends) == 2
    assert ends[0][1] == ends[1][1]
    assert float(ends[0][0]) < 0.01


def test_a_pipeline(tmp_path: Path) -> None:
    printed = run(blocks("pipeline.md", "python")[0], tmp_path)
    loss = re.search(r"^\[0\]<stdout>:loss (0\.\d+)$", printed, re.M)
    assert loss and float(loss[1]) < 0.2, printed
    assert re.search(r"1f1b, 8 micro-batches: .* over 100 steps", printed)


def test_the_readme_s_lines_and_a_step(tmp_path: Path) -> None:
    step = """
before = model.weight.detach().clone()
model(torch.full((4, 10), float(hvd.rank()))).sum().backward()
optimizer.step()
moved = (before - model.weight) / (0.01 * hvd.size())
print([round(value, 4) for value in moved.detach().flatten().tolist()])
"""
    printed = run(block("../README.md", "python", "import torch") + step, tmp_path)
    lines = [line.partition(":")[2] for line in printed.splitlines()]
    assert len(lines) == 2 and lines[0] == lines[1]
    # Rank 0's gradient is 0, rank 1's is 4: each has the mean.
    assert lines[0] == str([2.0] * 10)


def test_quick_start_with_keras(tmp_path: Path) -> None:
    printed = run(block("quickstart.md", "python", "import keras"), tmp_path)
    assert re.search(r"\[0\]<stdout>:100/100 .* - loss: [\d.]+", printed)
    assert "[1]<stdout>:100/100" not in printed


def test_quick_start_with_numpy(tmp_path: Path) -> None:
    printed = run(block("quickstart.md", "python", "import numpy"), tmp_path)
    assert sorted(printed.splitlines()) == [
        f"[{rank}]<stdout>:rank {rank} of 2: [0.5 0.5 0.5 0.5]" for rank in range(2)
    ]


def test_quick_start_in_c(tmp_path: Path) -> None:
    [source] = blocks("quickstart.md", "c")
    (tmp_path / "hello.c").write_text(source)
    program = compiled(tmp_path / "hello.c", tmp_path / "hello", "-std=c99")
    printed = perseusrun(str(program))
    assert sorted(printed.splitlines()) == [
        f"[{rank}]<stdout>:rank {rank} of 2" for rank in range(2)
    ]


def check_training(printed: str) -> None:
    """Checks that two ranks have learnt the same model."""
    lines = re.findall(r"rank \d: loss (\d\.\d+), bias (\S+)$", printed, re.M)
    assert len(lines) == 2
    assert max(float(loss) for loss, _ in lines) < 0.1
    assert lines[0][1] == lines[1][1]


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_the_first_program_of_a_framework_s_page(framework: str, tmp_path: Path) -> None:
    check_training(run(blocks(f"{framework}.md", "python")[0], tmp_path))


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_training_with_keras(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    printed = run(block("tensorflow.md", "python", "import keras"), tmp_path)
    assert re.search(r"\[0\]<stdout>:10/10 .* - loss: [\d.]+", printed)
    assert "[1]<stdout>:10/10" not in printed


@pytest.mark.parametrize("beginning", ["loss.backward()", "scaler.scale"])
def test_a_step_with_reduced_gradients_before_it(beginning: str, tmp_path: Path) -> None:
    training, last = blocks("torch.md", "python")[0].rsplit("#", 1)
    loss = "loss = model(x).pow(2).mean()\noptimizer.zero_grad()\n"
    scaler = 'scaler = torch.amp.GradScaler("cpu")\n'
    step = block("torch.md", "python", beginning)
    before = "before = model.bias.item()\n"
    moved = "assert model.bias.item() != before, before\n#"
    printed = run(training + loss + scaler + before + step + moved + last, tmp_path)
    assert len(set(re.findall(r"bias (\S+)$", printed, re.M))) == 1


def test_distributed_data_parallel_over_perseus(tmp_path: Path) -> None:
    beginning = "import torch\nimport torch.distributed as dist\n\nimport perseus.torch"
    program = block("torch.md", "python", beginning)
    hook = block("torch.md", "python", "import perseus.torch.horovod as hvd\nfrom")
    check = (
        "model(torch.full((1, 10), float(hvd.rank()))).sum().backward()\n"
        "assert model.module.weight.grad.tolist() == [[0.5] * 10]\n"
    )
    run(program + hook + check, tmp_path)
    run(program + check.replace("hvd.rank", "dist.get_rank"), tmp_path)


def test_a_pipeline_over_perseus(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.pipelining")
    beginning = "import torch\nimport torch.distributed as dist\nfrom torch.distributed.pipelining"
    printed = run(block("torch.md", "python", beginning), tmp_path)
    assert re.fullmatch(r"\[1\]<stdout>:loss \d\.\d+\n", printed)


def test_the_first_program_of_the_page_on_errors(tmp_path: Path) -> None:
    printed = run(blocks("errors.md", "python")[0], tmp_path)
    shown = block("errors.md", "text", "MismatchError").replace("\n", " ").strip()
    assert sorted(printed.splitlines()) == [f"[{rank}]<stdout>:{shown}" for rank in range(2)]


def test_a_codec_for_one_operation(tmp_path: Path) -> None:
    check = "assert mean.tolist() == [1] * 1000\n"
    run(block("codecs.md", "python", "import numpy") + check, tmp_path)


def test_the_first_program_of_the_page_on_c(tmp_path: Path) -> None:
    (tmp_path / "hello.c").write_text(blocks("c-api.md", "c")[0])
    program = compiled(tmp_path / "hello.c", tmp_path / "hello", "-std=c99")
    printed = perseusrun(str(program))
    assert sorted(printed.splitlines()) == [
        f"[{rank}]<stdout>:hello from rank {rank} of 2: the sum is 3" for rank in range(2)
    ]


def test_the_tour_of_perseus_core(tmp_path: Path) -> None:
    run("".join(blocks("perseus-core.md", "python")), tmp_path)


def test_the_tour_of_perseus_core_has_every_public_name() -> None:
    text = (DOCS / "perseus-core.md").read_text()
    assert [name for name in perseus_core.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_counting_a_part_of_a_program(tmp_path: Path) -> None:
    printed = run(block("counters.md", "python", "import numpy"), tmp_path)
    assert re.search(r"^\[0\]<stdout>:bytes_reduced +40,000,000$", printed, re.M)


def test_serving_the_rendezvous() -> None:
    program = block("containers.md", "python", "import secrets")
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["0 [1. 1.]", "1 [1. 1.]"]


def manifests() -> list[dict[str, object]]:
    every = [each for text in blocks("containers.md", "yaml") for each in yaml.safe_load_all(text)]
    return [each for each in every if "kind" in each]


def test_the_job_of_kubernetes_tells_each_pod_what_init_reads() -> None:
    found = {each["kind"]: each for each in manifests()}
    assert sorted(found) == ["Job", "MPIJob", "Service"]
    spec: dict = found["Job"]["spec"]  # type: ignore[assignment]
    pod = spec["template"]["spec"]
    environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys()
    assert environment["WORLD_SIZE"] == str(spec["completions"]) == str(spec["parallelism"])
    service: dict = found["Service"]  # type: ignore[assignment]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert environment["MASTER_ADDR"] == f"train-0.{pod['subdomain']}"
    table = {each.name for each in perseus_core.settings()}
    read_by_init = {"PERSEUS_SECRET"}
    assert {name for name in environment if name.startswith("PERSEUS_")} <= table | read_by_init


def test_ranks_that_have_not_drifted_apart_are_not_reported(tmp_path: Path) -> None:
    training = block("quickstart.md", "python", "import torch")
    printed = run(training + block("troubleshooting.md", "python", "for name"), tmp_path)
    assert "differs" not in printed


def test_ranks_that_have_drifted_apart_are_reported(tmp_path: Path) -> None:
    training = block("quickstart.md", "python", "import torch")
    drift = "if hvd.rank() == 1:\n    torch.nn.init.zeros_(model.bias)\n"
    printed = run(training + drift + block("troubleshooting.md", "python", "for name"), tmp_path)
    assert "[1]<stdout>:rank 1: bias differs from rank 0's" in printed
    assert "weight differs" not in printed


#: What goes wrong on two ranks, and a part of each line about it in docs/troubleshooting.md.
TROUBLES = {
    "shapes": ('p.allreduce(np.ones(3 + p.rank()), name="w")', ["rank 1 submitted float64[4]"]),
    "two operations": (
        'x = np.ones(3)\np.broadcast(x, 0, name="x") if p.rank() else p.allreduce(x, name="x")',
        ["it waits for 'broadcast.x'"],
    ),
    "a name in flight": (
        'a, b = (p.allreduce_async(np.ones(3_000_000), name="loss") for _ in range(2))',
        ["is still in flight"],
    ),
    "an exception": (
        'if p.rank(): raise RuntimeError("no such file: data.csv")\n'
        'p.allreduce(np.ones(3), name="loss")',
        ["has ended: RuntimeError"],
    ),
    "a killed process": (
        'if p.rank(): os.kill(os.getpid(), 9)\np.allreduce(np.ones(3), name="w")',
        ["its process has ended", "was killed by SIGKILL"],
    ),
    "a stopped process": (
        'if p.rank(): os.kill(os.getpid(), 19)\np.allreduce(np.ones(3), name="w")',
        ["it has said nothing for"],
    ),
    "a stall": (
        'if p.rank(): time.sleep(4)\np.allreduce(np.ones(3), name="loss")',
        [
            "1 tensor waits",
            "missing on rank 1",
            "Every rank must submit every tensor",
            "nothing yet",
        ],
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_message_is_as_troubleshooting_shows_it(trouble: str) -> None:
    program, beginnings = TROUBLES[trouble]
    script = f"import os, time, numpy as np, perseus_core as p\np.init()\n{program}"
    settings = {
        "PERSEUS_LOG_HIDE_TIME": "1",
        "PERSEUS_PEER_TIMEOUT": "2",
        "PERSEUS_STALL_CHECK_TIME_SECONDS": "2",
    }
    launcher = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, "-c", script]
    environment = {**os.environ, **settings}
    result = subprocess.run(
        launcher, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    # The page has the default times.
    printed = re.sub(r"\b2( s\b|\))", r"30\1", result.stderr).splitlines()
    shown = "".join(blocks("troubleshooting.md", "text")).splitlines()
    for part in beginnings:
        assert [line for line in shown if part in line and any(line in one for one in printed)], (
            f"{part} in\n{result.stderr}"
        )


def test_a_layer_wise_pipeline(tmp_path: Path) -> None:
    printed = run(block("layer-wise.md", "python", "import torch"), tmp_path)
    for stage in range(2):
        assert f"[0]<stdout>:stage {stage} (RBM) on rank {stage}: busy 0." in printed, printed
