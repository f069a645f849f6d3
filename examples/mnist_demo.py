"""`make demo`: torch_mnist.py by one process and by two, side by side.

Both train with the same global batch, so after the first epoch their parameters may differ only by
the rounding of float32. Exits with 1 if they do not agree, or if the digits are not recognised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
WANTED_ACCURACY = 0.95
# A float32 sum of two halves of a batch is rounded otherwise than the sum of the whole, by some
# 2 ** -24 = 6e-8 of it. The model is smooth, so the 66 steps of an epoch carry such differences on
# and add to them, but do not blow them up: about 5e-6 of a tensor's largest element was seen, and
# 1e-15 with the same program in float64. An error in the averaging shows in the first digits.
TOLERANCE = 1e-4


def run(processes: int, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The results of a run, and its parameters after the first epoch."""
    report, parameters = folder / f"{processes}.json", folder / f"{processes}.pt"
    command = [sys.executable, str(ROOT / "examples/torch_mnist.py")]
    command += ["--report", str(report), "--save-first-epoch", str(parameters)]
    if processes > 1:
        launcher = [sys.executable, "-m", "perseus.run", "-np", str(processes), "--"]
        command = launcher + command
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    status = subprocess.run(command, env=environment).returncode
    if status != 0:
        sys.exit(f"make demo: training with {processes} processes failed (status {status})")
    return json.loads(report.read_text()), torch.load(parameters, weights_only=True)


def largest_difference(one: dict[str, torch.Tensor], many: dict[str, torch.Tensor]) -> float:
    """Of any parameter, relative to the largest element of its tensor."""
    return max(float((one[name] - many[name]).abs().max() / one[name].abs().max()) for name in one)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        many, parameters = run(PROCESSES, Path(folder))
        print("\nthe same with one process:", flush=True)
        one, reference = run(1, Path(folder))
    difference = largest_difference(reference, parameters)
    print()
    print(f"{'processes':<28}{1:>10}{PROCESSES:>10}")
    print(f"{'test accuracy, %':<28}{100 * one['accuracy']:>10.1f}{100 * many['accuracy']:>10.1f}")
    speeds = f"{one['images_per_second']:>10.0f}{many['images_per_second']:>10.0f}"
    print(f"{'images/s':<28}{speeds}")
    print(
        f"largest relative difference of a parameter after epoch 1: {difference:.1e} "
        f"(float32 rounding explains up to {TOLERANCE:.0e})"
    )
    if difference > TOLERANCE:
        sys.exit("make demo: the runs do not agree")
    if min(one["accuracy"], many["accuracy"]) < WANTED_ACCURACY:
        sys.exit(f"make demo: the test accuracy is below {100 * WANTED_ACCURACY:.0f} %")


if __name__ == "__main__":
    main()
