"""programs.py [NAME...]: trains with other projects' libraries over Perseus, and checks the result.

Each program of tests/programs runs as several ranks, and once more without Perseus. All ranks must
end with the same weights, and with those of that other run. NAME is a group of
requirements/programs-NAME.txt, such as lightning; each has an environment in build/. What was found
is kept in tests/programs/results.json, from which `make pages` writes the table of
docs/programs.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import environment
import framework_versions
import numpy as np
from debian import ROOT

FOLDER = ROOT / "tests/programs"
RESULTS = FOLDER / "results.json"
BUILT = ROOT / "build/programs"
SECONDS = 600
#: Sums of float32 are rounded in a different order; some hundred steps make more of it.
TOLERANCE = 1e-3
#: A tensor that is smaller holds nothing but rounding errors, as the bias of an attention's keys.
SMALLEST = 1e-3
OF_TENSORFLOW_2_13 = (3, 11)


@dataclass(frozen=True)
class Program:
    """A program, how its ranks are started, and the packages whose versions are of interest."""

    title: str
    file: str
    name: str  # of its requirements
    packages: tuple[str, ...]
    launcher: str
    arguments: tuple[str, ...] = ()
    #: False if the ranks together do not draw the data that one process draws.
    same_data: bool = True
    newest_python: tuple[int, int] = (3, 14)
    ranks: tuple[int, ...] = (2, 3)


#: A program gets how many ranks there are in place of {ranks}.
LAUNCHERS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{ranks}"),
    "perseusrun": ("-m", "perseus.run", "-np", "{ranks}", "{python}"),
    "perseusrun --drop-in": ("-m", "perseus.run", "--drop-in", "-np", "{ranks}", "{python}"),
    "the program itself": (),
}

_IGNITE = ("pytorch-ignite", "torch")
_LIGHTNING = ("lightning", "torch")
_OF_ALL = ("--ranks", "{ranks}")
PROGRAMS = [
    Program(
        "Trainer of transformers",
        "huggingface_trainer.py",
        "huggingface",
        ("transformers", "accelerate", "torch"),
        "torchrun",
    ),
    Program(
        "accelerate",
        "accelerate_digits.py",
        "huggingface",
        ("accelerate", "torch"),
        "perseusrun",
    ),
    Program("Lightning", "lightning_digits.py", "lightning", _LIGHTNING, "torchrun", _OF_ALL),
    Program(
        "Lightning, by its own launcher",
        "lightning_digits.py",
        "lightning",
        _LIGHTNING,
        "the program itself",
        _OF_ALL,
    ),
    Program(
        "PyTorch-Ignite, as Horovod",
        "ignite_digits.py",
        "ignite",
        _IGNITE,
        "perseusrun --drop-in",
        ("--backend", "horovod"),
    ),
    Program(
        "PyTorch-Ignite, in a process group",
        "ignite_digits.py",
        "ignite",
        _IGNITE,
        "torchrun",
        ("--backend", "perseus"),
    ),
    *(
        Program(
            f"DeepSpeed, ZeRO {stage}",
            "deepspeed_zero.py",
            "deepspeed",
            ("deepspeed", "torch"),
            "torchrun",
            ("--stage", str(stage)),
        )
        for stage in range(4)
    ),
    Program(
        "DeepSpeed, PipelineModule",
        "deepspeed_pipeline.py",
        "deepspeed",
        ("deepspeed", "torch"),
        "torchrun",
        ranks=(2, 4),
    ),
    Program("MONAI", "monai_segmentation.py", "monai", ("monai", "torch"), "torchrun"),
    Program(
        "DeePMD-kit, TensorFlow",
        "deepmd_argon.py",
        "deepmd",
        ("deepmd-kit", "tensorflow-cpu"),
        "perseusrun --drop-in",
        same_data=False,
    ),
    Program(
        "OpenNMT-tf",
        "opennmt_words.py",
        "opennmt",
        ("opennmt-tf", "tensorflow-cpu"),
        "perseusrun --drop-in",
        newest_python=OF_TENSORFLOW_2_13,
    ),
    Program(
        "tensorpack",
        "tensorpack_digits.py",
        "tensorpack",
        ("tensorpack", "tensorflow-cpu"),
        "perseusrun --drop-in",
        newest_python=OF_TENSORFLOW_2_13,
    ),
]


@dataclass
class Kept:
    """What one rank has kept: its weights, and a figure that says how good it is."""

    weights: list[np.ndarray[Any, Any]]
    figure: str
    value: float


@dataclass
class Result:
    """One line of results.json. Without a problem, all was as it must be."""

    title: str
    ranks: int
    launcher: str
    versions: dict[str, str]
    python: str
    day: str
    problem: str = ""
    figure: str = ""
    value: float | None = None
    value_alone: float | None = None
    #: See largest_difference; None where the data differ.
    difference: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def read(folder: Path, ranks: int) -> list[Kept] | str:
    """Returns what the ranks have kept, or what is wrong with it."""
    kept = []
    for rank in range(ranks):
        file = folder / f"{rank}.npz"
        if not file.exists():
            return f"rank {rank} has kept no weights"
        with np.load(file) as arrays:
            names = sorted(name for name in arrays.files if name.startswith("weight_"))
            weights = [arrays[name] for name in names]
            kept.append(Kept(weights, str(arrays["figure"]), float(arrays["value"])))
    return kept


def largest_difference(one: Kept, other: Kept) -> float:
    """Returns the largest difference of two weights, relative to the largest of their tensor, or
    to SMALLEST."""
    largest = 0.0
    for mine, theirs in zip(one.weights, other.weights, strict=True):
        scale = max(float(np.abs(theirs).max()), SMALLEST)
        largest = max(largest, float(np.abs(mine - theirs).max()) / scale)
    return largest


def problem_of(ranks: list[Kept], alone: Kept, same_data: bool) -> str:
    """Returns what is wrong with the ranks' weights; "" if they are what they must be."""
    for rank, kept in enumerate(ranks):
        if len(kept.weights) != len(alone.weights) or not kept.weights:
            return (
                f"rank {rank} has {len(kept.weights)} weights, and one process {len(alone.weights)}"
            )
        if not all(np.isfinite(weight).all() for weight in kept.weights):
            return f"rank {rank} has weights that are no numbers"
        if not all(map(np.array_equal, kept.weights, ranks[0].weights)):
            return f"rank {rank} has other weights than rank 0"
    difference = largest_difference(ranks[0], alone)
    if same_data and not difference <= TOLERANCE:
        return f"weights differ by {difference:.1e} from those of one process"
    allowed = 0.1 if same_data else 0.3
    if not abs(ranks[0].value - alone.value) <= allowed * abs(alone.value):
        return f"{ranks[0].figure} is {ranks[0].value:g}, and {alone.value:g} with one process"
    return ""


def run(program: Program, python: Path, ranks: int | None) -> tuple[list[Kept] | str, float]:
    """Runs a program as that many ranks, or alone; returns what was kept, and seconds."""
    label = f"{ranks} ranks" if ranks else "alone"
    name = f"{program.title if ranks else program.file}, {label}"
    name = name.lower().replace(",", "").replace(" ", "-")
    folder = BUILT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    arguments = [word for word in (*program.arguments,) if ranks or word not in _OF_ALL]
    words = [*LAUNCHERS[program.launcher if ranks else "the program itself"]]
    words += [str(FOLDER / program.file), *arguments]
    command = [str(python), *(word.format(ranks=ranks, python=python) for word in words)]
    variables = {
        **os.environ,
        "PROGRAM_OUTCOME": str(folder),
        "OMP_NUM_THREADS": "1",  # one process a core
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
        # DeepSpeed compiles what it needs when it is first used.
        "TORCH_EXTENSIONS_DIR": str(python.parent.parent / "extensions"),
    }
    began = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        job = subprocess.Popen(
            command if ranks else [*command, "--alone"],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            job.wait(SECONDS)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.wait()
    seconds = time.monotonic() - began
    if job.returncode != 0:
        where = (folder / "log.txt").relative_to(ROOT)
        return f"{label}: ended with exit code {job.returncode}; see {where}", seconds
    kept = read(folder, ranks or 1)
    return (f"{label}: {kept}" if isinstance(kept, str) else kept), seconds


def results_of(
    program: Program,
    python: Path,
    sizes: list[int],
    runs_alone: dict[str, tuple[list[Kept] | str, float]],
) -> list[Result]:
    """Runs a program alone, if it has not been yet, and then at each number of ranks."""
    versions = {
        package: framework_versions.version(python, package) for package in program.packages
    }
    if program.file not in runs_alone:
        runs_alone[program.file] = run(program, python, None)
    alone, seconds_alone = runs_alone[program.file]
    results = []
    for ranks in sizes:
        result = Result(
            program.title,
            ranks,
            program.launcher,
            versions,
            platform.python_version(),
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        )
        results.append(result)
        if isinstance(alone, str):
            result.problem = alone
            continue
        kept, seconds = run(program, python, ranks)
        result.seconds = {"ranks": round(seconds, 1), "alone": round(seconds_alone, 1)}
        if isinstance(kept, str):
            result.problem = kept
            continue
        result.problem = problem_of(kept, alone[0], program.same_data)
        result.figure, result.value = kept[0].figure, kept[0].value
        result.value_alone = alone[0].value
        if program.same_data and not result.problem:
            result.difference = largest_difference(kept[0], alone[0])
        print(f"   {ranks} ranks: {result.problem or 'right'}", flush=True)
    return results


def merged(kept: list[dict[str, Any]], found: list[Result]) -> list[dict[str, Any]]:
    """Returns the results with the new ones in place of the old ones, in the order of PROGRAMS."""
    by_key = {(each["title"], each["ranks"]): each for each in kept}
    by_key |= {(each.title, each.ranks): asdict(each) for each in found}
    titles = [program.title for program in PROGRAMS]
    known = [key for key in by_key if key[0] in titles]
    return [by_key[key] for key in sorted(known, key=lambda key: (titles.index(key[0]), key[1]))]


def main() -> None:
    names = list(dict.fromkeys(program.name for program in PROGRAMS))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--ranks",
        type=int,
        action="append",
        metavar="N",
        help="if not given, 2 and 3, or those that the program can have",
    )
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: NAME must be one of {', '.join(names)}")
    failed = False
    runs_alone: dict[str, tuple[list[Kept] | str, float]] = {}
    for program in PROGRAMS:
        if args.names and program.name not in args.names:
            continue
        if sys.version_info[:2] > program.newest_python:
            newest = ".".join(map(str, program.newest_python))
            print(f"== {program.title}: left out, for its packages need Python {newest} or older")
            continue
        python = environment.of_the_tree(f"programs-{program.name}")
        print(f"== {program.title}", flush=True)
        found = results_of(program, python, args.ranks or list(program.ranks), runs_alone)
        for result in found:
            if result.problem:
                print(f"   {result.problem}", flush=True)
                failed = True
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        RESULTS.write_text(json.dumps(merged(kept, found), indent=2) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
