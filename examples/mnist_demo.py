"""`make demo`: runs torch/01_mnist.py with two processes and with one, and compares them.

Both train with the same global batch, so after the first epoch their parameters may differ only by
float32 rounding. Exits with 1 if they differ by more; the example itself does so if its accuracy is
too low. Arguments are passed to the example.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
# A float32 sum of two halves of a batch is rounded differently from the sum of the whole, by about
# 2 ** -24 = 6e-8 of it. The model is smooth, so the 66 steps of an epoch add up such differences
# but do not amplify them: about 5e-6 of a tensor's largest element was seen, and 1e-15 with the
# same program in float64. A mistake in the averaging shows in the leading digits.
TOLERANCE = 1e-4


@dataclass
class Outcome:
    accuracy: str
    images_per_second: str
    parameters: dict[str, torch.Tensor]  # after the first epoch


def run(processes: int) -> Outcome:
    command = [sys.executable, str(ROOT / "examples/torch/01_mnist.py"), *sys.argv[1:]]
    if processes > 1:
        launcher = [sys.executable, "-m", "perseus.run", "-np", str(processes), "--"]
        command = launcher + command
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        command += ["--checkpoint", f"{folder}/{{epoch}}.pt"]
        lines = []
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout
            for line in job.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        if job.returncode != 0:
            sys.exit(f"make demo: training with {processes} processes failed ({job.returncode})")
        parameters = torch.load(f"{folder}/1.pt", weights_only=True)["model"]
    found = re.search(r"test accuracy ([\d.]+) %, (\d+) images/s", "".join(lines))
    assert found, lines
    return Outcome(found[1], found[2], parameters)


def largest_difference(one: dict[str, torch.Tensor], many: dict[str, torch.Tensor]) -> float:
    """Returns it over all parameters, relative to the largest element of each tensor."""
    return max(float((one[name] - many[name]).abs().max() / one[name].abs().max()) for name in one)


def main() -> None:
    many = run(PROCESSES)
    print("\nthe same with one process:", flush=True)
    one = run(1)
    difference = largest_difference(one.parameters, many.parameters)
    print()
    print(f"{'processes':<28}{1:>10}{PROCESSES:>10}")
    print(f"{'test accuracy, %':<28}{one.accuracy:>10}{many.accuracy:>10}")
    print(f"{'images/s':<28}{one.images_per_second:>10}{many.images_per_second:>10}")
    print(
        f"largest relative difference of a parameter after epoch 1: {difference:.1e} "
        f"(float32 rounding explains up to {TOLERANCE:.0e})"
    )
    if difference > TOLERANCE:
        sys.exit("make demo: the runs do not agree")


if __name__ == "__main__":
    main()
