"""gpu_check.py [--quick] [--only STEP] [--limit S] [--list]: tests and measures on this GPU.

Run it with the Python that has PyTorch. It needs nvcc and no network (tests/gpu/README.md says what
else). Each step is a process of its own with a time limit. All steps run, even if one fails. At the
end, one table is printed and written to benchmarks/results/gpu_check.json. Exits with 1 if a step
failed, or could not begin within the time.

On a machine without a GPU, PERSEUS_GPU_CHECK_DEVICE=cpu and --json test this script itself:
PyTorch's tensors are in CPU memory, and PERSEUS_CUDA_LIBRARY_PATH names the folder of
tests/standin's libraries.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gpu_build
import gpu_nccl
from debian import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from contest.report import machine

TESTS = ROOT / "tests/gpu"
#: PyTorch's tests for CUDA tensors: those shared with CPU tensors, and those for CUDA only.
TORCH = [
    *(
        ROOT / f"tests/python/parallel/test_torch_{what}.py"
        for what in ("collectives", "autograd", "sync_batch_norm")
    ),
    TESTS / "test_torch_cuda.py",
]
CUPY = TESTS / "test_cupy.py"
LOGS = gpu_build.FOLDER / "logs"
RESULTS = ROOT / "benchmarks/results/gpu_check.json"
ON_CPU = os.environ.get("PERSEUS_GPU_CHECK_DEVICE") == "cpu"
PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"

GPU = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 'PyTorch sees none')"
VERSIONS = """
import importlib.metadata as m, json, torch
p = torch.cuda.get_device_properties(0)
found = {"GPU": p.name, "GPUs": torch.cuda.device_count(), "memory, GiB": p.total_memory >> 30,
         "multiprocessors": p.multi_processor_count, "compute capability": f"{p.major}.{p.minor}",
         "torch": torch.__version__, "CUDA of torch": torch.version.cuda,
         "NCCL of torch": ".".join(map(str, torch.cuda.nccl.version()))}
names = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
found |= {k: v for k, v in names.items() if k.startswith("cupy") or k in ("numpy", "scikit-learn")}
print(json.dumps(found))
"""


@dataclass
class Context:
    quick: bool
    nccl: gpu_nccl.Found
    figures: Path = LOGS / "figures.json"


@dataclass
class Step:
    """One step: what is run, or why it is not; and which figures the table shows."""

    name: str
    what: str
    limit: float  # seconds
    command: Callable[[Context], Sequence[str | Path]]
    environment: Callable[[Context], dict[str, str]] = lambda _: {}
    why_not: Callable[[Context], str] = lambda _: ""
    shown: tuple[str, ...] = ()
    only_long: bool = False


@dataclass
class Outcome:
    step: str
    result: str
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


def kernels(*arguments: str) -> Callable[[Context], list[str | Path]]:
    def command(context: Context) -> list[str | Path]:
        least = ["--alignments", "4", "--rounds", "10"] if context.quick else ["--huge"]
        return [gpu_build.KERNELS, "check", *(arguments or least)]

    return command


def compute_sanitizer() -> str | None:
    """Looks for compute-sanitizer on PATH and where nvcc may be as well."""
    toolkits = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    beside = (f"{toolkit}/bin" for toolkit in (*toolkits, "/usr/local/cuda"))
    places = os.pathsep.join((os.environ.get("PATH", ""), *beside))
    return shutil.which("compute-sanitizer", path=places)


def sanitized(tool: str) -> Step:
    options = ["--tool", tool, "--error-exitcode", "9"]
    return Step(
        tool,
        f"kernels under compute-sanitizer {tool}",
        100,
        lambda context: [
            compute_sanitizer() or "compute-sanitizer",
            *options,
            *kernels("--alignments", "2", "--rounds", "2")(context),
        ],
        why_not=lambda _: (
            "" if compute_sanitizer() else "compute-sanitizer is neither on PATH nor beside CUDA"
        ),
        only_long=tool != "memcheck",
    )


def with_ranks(ranks: int, *program: str | Path) -> list[str | Path]:
    launcher: list[str | Path] = [sys.executable, "-m", "perseus.run", "-np", str(ranks), "--"]
    return [*launcher, sys.executable, *program]


def tests(ranks: int, *files: Path) -> Callable[[Context], list[str | Path]]:
    options: list[str | Path] = ["-q", "-p", "no:cacheprovider", "-c", TESTS / "pytest.ini"]
    # Ranks that are out of step fail all later tests, so a few failures say enough.
    options += ["--maxfail", "20" if ranks == 1 else "3"]
    return lambda _: with_ranks(ranks, "-m", "pytest", *options, *files)


def program(name: str, ranks: int) -> Callable[[Context], list[str | Path]]:
    return lambda context: with_ranks(
        ranks,
        TESTS / name,
        "--figures",
        context.figures,
        *(["--quick"] if context.quick else []),
    )


def operations(way: str) -> Callable[[Context], dict[str, str]]:
    return lambda _: {"PERSEUS_GPU_OPERATIONS": way}


def shared_gpu(ranks: int) -> Callable[[Context], dict[str, str]]:
    return lambda context: {
        "PERSEUS_GPU_OPERATIONS": "nccl",
        **context.nccl.environment(ranks),
    }


def no_gpu(_: Context) -> str:
    return "it needs a GPU" if ON_CPU else ""


def no_cupy(_: Context) -> str:
    return "" if ON_CPU or importlib.util.find_spec("cupy") else "CuPy is not installed"


def no_digits(_: Context) -> str:
    return "" if importlib.util.find_spec("sklearn") else "scikit-learn is not installed"


def no_nccl(context: Context) -> str:
    return context.nccl.why_not


SHARES = tuple(
    f"{model}: {what}"
    for model in ("resnet50", "bert-large")
    for what in (
        "pack, of copy",
        "unpack, of copy",
        "pack, searched for NaN, of copy",
        "pack as float16, of copy",
        "pack, times torch._foreach_copy_",
        "pack, times a cudaMemcpyAsync each",
    )
)
SPEED = ("GB/s", "rank 0 to pinned memory, GB/s", "times of that", "4 KiB, us")
TRAINING = ("accuracy", "largest difference of a loss", "images/s")

STEPS = [
    Step(
        "build",
        "engine, kernels and packages, in build/gpu",
        1200,
        lambda _: [sys.executable, ROOT / "scripts/gpu_build.py"],
    ),
    Step(
        "check-build",
        "what perseusrun --check-build says",
        60,
        lambda _: [sys.executable, "-m", "perseus.run", "--check-build"],
    ),
    Step("kernels", "kernels against the CPU's", 60, kernels()),
    Step(
        "bandwidth",
        "packing real models' gradients",
        90,
        lambda context: [
            sys.executable,
            TESTS / "copies.py",
            gpu_build.KERNELS,
            *("--figures", str(context.figures)),
            *(["--quick"] if context.quick else []),
        ],
        why_not=no_gpu,
        shown=("copy, GB/s", *SHARES),
    ),
    sanitized("memcheck"),
    Step("torch-1", "PyTorch, 1 rank, NCCL", 90, tests(1, *TORCH), operations("nccl")),
    Step(
        "torch-2-staged",
        "PyTorch, 2 ranks, by way of the host",
        90,
        tests(2, *TORCH),
        operations("staged"),
    ),
    Step(
        "torch-2-nccl",
        "PyTorch, 2 ranks on one GPU, NCCL",
        120,
        tests(2, *TORCH),
        shared_gpu(2),
        no_nccl,
    ),
    Step("cupy-1", "CuPy, 1 rank, NCCL", 60, tests(1, CUPY), operations("nccl"), no_cupy),
    Step(
        "cupy-2-staged",
        "CuPy, 2 ranks, by way of the host",
        60,
        tests(2, CUPY),
        operations("staged"),
        no_cupy,
    ),
    Step(
        "training-1",
        "a CNN on real digits, 1 rank, NCCL",
        60,
        program("digits.py", 1),
        operations("nccl"),
        no_digits,
        TRAINING,
    ),
    Step(
        "training-2-staged",
        "the same, 2 ranks, by way of the host",
        60,
        program("digits.py", 2),
        operations("staged"),
        no_digits,
        TRAINING,
    ),
    Step(
        "training-2-nccl",
        "the same, 2 ranks on one GPU, NCCL",
        60,
        program("digits.py", 2),
        shared_gpu(2),
        lambda context: no_digits(context) or no_nccl(context),
        TRAINING,
    ),
    Step(
        "speed-1",
        "64 MiB in place, 1 rank, NCCL",
        60,
        program("allreduce.py", 1),
        operations("nccl"),
        shown=SPEED,
    ),
    Step(
        "speed-2-staged",
        "64 MiB in place, 2 ranks, by way of the host",
        60,
        program("allreduce.py", 2),
        operations("staged"),
        shown=SPEED,
    ),
    Step(
        "speed-2-nccl",
        "64 MiB in place, 2 ranks on one GPU, NCCL",
        60,
        program("allreduce.py", 2),
        shared_gpu(2),
        no_nccl,
        SPEED,
    ),
    Step(
        "torch-2-auto",
        "PyTorch, 2 ranks, by the way Perseus finds",
        90,
        tests(2, *TORCH),
        operations("auto"),
        only_long=True,
    ),
    Step(
        "torch-4-nccl",
        "PyTorch, 4 ranks on one GPU, NCCL",
        120,
        tests(4, *TORCH),
        shared_gpu(4),
        no_nccl,
        only_long=True,
    ),
    sanitized("initcheck"),
    sanitized("racecheck"),
]
NAMES = [step.name for step in STEPS]


def run(step: Step, context: Context, limit: float) -> Outcome:
    if why := step.why_not(context):
        return Outcome(step.name, NOT_RUN, reason=why)
    device = {"PERSEUS_TEST_DEVICE": "cpu" if ON_CPU else "cuda"}
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **device, **step.environment(context)}
    paths = [str(gpu_build.PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    if step.name != "build":
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    context.figures.unlink(missing_ok=True)
    log = LOGS / f"{step.name}.log"
    command = list(map(str, step.command(context)))
    began = time.monotonic()
    with log.open("w") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        # Not in the source tree, whose packages have no engine or another one.
        job = subprocess.Popen(
            command,
            cwd=gpu_build.FOLDER,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = job.wait(timeout=limit)
        except BaseException as error:
            end(job)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = None
    seconds = time.monotonic() - began
    text = log.read_text(errors="replace")
    figures = figures_of(step, text)
    if context.figures.exists():
        figures |= json.loads(context.figures.read_text())
    if status == 0:
        return Outcome(step.name, PASSED, seconds, figures)
    print("\n".join(text.splitlines()[-60:]), flush=True)
    what = f"ended after its limit, {limit:.0f} s" if status is None else f"exit status {status}"
    said = [
        line for line in text.splitlines() if re.search(r"FAILED |Error|error:|gpu_\w+: ", line)
    ]
    reason = "; ".join([what, *said[-6:]])
    return Outcome(step.name, FAILED, seconds, figures, reason)


def end(job: subprocess.Popen[bytes]) -> None:
    """Ends all processes of the step's session."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(timeout=patience)


def figures_of(step: Step, text: str) -> dict[str, Any]:
    """Returns what the step's output itself says."""
    found: dict[str, Any] = {}
    if step.name == "check-build":
        found["output"] = text.splitlines()[1:]
    if step.name == "build" and (words := re.search(r"^kernels: (.*)$", text, re.M)):
        found["kernels"] = words[1]
    for line in re.findall(r"^\{.*\}$", text, re.M):
        values = json.loads(line)
        if "seed" in values:
            found["seed"] = values["seed"]
        elif "part" in values:
            found["runs"] = found.get("runs", 0) + values["runs"]
    if last := re.search(r"^(?:\[0\]<stdout>:)?(\d+ (?:passed|failed).*) in [\d.]+s", text, re.M):
        found["tests"] = last[1]
    if words := re.search(r"ERROR SUMMARY: (.*)", text):
        found["errors"] = words[1]
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    steps = {step.name: step for step in STEPS}
    lines = []
    for outcome in outcomes:
        step = steps[outcome.step]
        keys = step.shown or tuple(key for key in outcome.figures if key != "output")
        words = [f"{key} {outcome.figures[key]}" for key in keys if key in outcome.figures]
        words += [outcome.reason] if outcome.reason else []
        head = f"{step.name:18} {outcome.result:8} {outcome.seconds:6.1f} s  {step.what}"
        lines += [head, *(f"{'':10}{word}" for word in words)]
    return "\n".join(lines)


def description() -> dict[str, Any]:
    found = machine()
    del found["versions"]["torch"], found["versions"]["numpy"]
    done = subprocess.run([sys.executable, "-c", VERSIONS], capture_output=True, text=True)
    if done.returncode == 0:
        found["versions"] |= json.loads(done.stdout)
    query = "--query-gpu=driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    with contextlib.suppress(OSError):
        asked = ["nvidia-smi", query, "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True)
        found["driver, clocks, power"] = done.stdout.strip()
    return found


def save(outcomes: Sequence[Outcome], about: dict[str, Any], file: Path, *, finished: bool) -> None:
    content = {
        "program": "gpu_check",
        "command": ["python", "scripts/gpu_check.py", *sys.argv[1:]],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "finished": finished,
        "machine": about,
        "rows": [
            {
                "step": outcome.step,
                "result": outcome.result,
                "seconds": round(outcome.seconds, 1),
                "figures": outcome.figures,
                "reason": outcome.reason or None,
            }
            for outcome in outcomes
        ],
    }
    part = file.with_name(f".{file.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(file)


def why_no_gpu() -> str:
    done = subprocess.run([sys.executable, "-c", GPU], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip() or "PyTorch ends at once").splitlines()[-1]


def chosen(names: Sequence[str], quick: bool) -> list[Step]:
    """Returns the named steps and the build that they need, or all steps."""
    if names:
        return [step for step in STEPS if step.name in ("build", *names)]
    return [step for step in STEPS if not (quick and step.only_long)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, rough figures")
    parser.add_argument("--only", action="append", choices=NAMES, metavar="STEP", default=[])
    parser.add_argument(
        "--limit",
        type=float,
        default=3600,
        metavar="S",
        help="seconds for all steps together; later steps do not begin (%(default)g)",
    )
    parser.add_argument("--list", action="store_true", help="list the steps and run none")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args()
    steps = chosen(args.only, args.quick)
    if args.list:
        print("\n".join(f"{step.name:18} {step.what}" for step in steps))
        return
    if ON_CPU and args.json == RESULTS:
        parser.error("these would be no results of a GPU: --json says where they go")
    if not ON_CPU and (why := why_no_gpu()):
        sys.exit(f"gpu-check: there is no GPU that {sys.executable} can use: {why}")
    LOGS.mkdir(parents=True, exist_ok=True)
    context = Context(args.quick, gpu_nccl.find())
    about = description()
    about["NCCL for several ranks on one GPU"] = context.nccl.version or context.nccl.why_not
    began = time.monotonic()
    outcomes: list[Outcome] = []
    late: list[str] = []
    for step in steps:
        left = args.limit - (time.monotonic() - began)
        print(f"== {step.name}: {step.what}", flush=True)
        if outcomes and outcomes[0].result == FAILED:
            outcome = Outcome(step.name, NOT_RUN, reason="the build failed")
        elif left < 5:
            why = f"the {args.limit:g} s of all steps are over"
            outcome = Outcome(step.name, NOT_RUN, reason=why)
            late.append(step.name)
        else:
            outcome = run(step, context, min(step.limit, left))
        print(f"   {outcome.result} {outcome.reason} ({outcome.seconds:.1f} s)", flush=True)
        outcomes.append(outcome)
        save(outcomes, about, args.json, finished=step is steps[-1])
    print(f"\n{table(outcomes)}")
    failed = [outcome.step for outcome in outcomes if outcome.result == FAILED]
    problems = [f"failed: {' '.join(failed)}"] if failed else []
    problems += [f"no time for: {' '.join(late)}"] if late else []
    sys.exit(f"gpu-check: {'; '.join(problems)}" if problems else 0)


if __name__ == "__main__":
    main()
