"""`make demo`: trains torch/01_mnist.py with two processes and with one, and compares them.

Both train with the same global batch, so after the first epoch their parameters may differ only by
float32 rounding. Exits with 1 if they differ by more; the example itself does so if its accuracy is
too low. Arguments are passed to the example.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = "examples/torch/01_mnist.py"
PROCESSES = 2
# A float32 sum of two halves of a batch is rounded differently from the sum of the whole, by about
# 2 ** -24 = 6e-8 of it. The model is smooth, so the 66 steps of an epoch add up such differences
# but do not amplify them: about 5e-6 of a tensor's largest element was seen, and 1e-15 with the
# same program in float64. A mistake in the averaging shows in the leading digits.
TOLERANCE = 1e-4
#: Two processes count as faster from this ratio on. Below it, both run again, up to so many times
#: in all, and the faster run of each counts: other programs can only slow a run.
FASTER, ROUNDS = 1.1, 3
#: Other programs explain a slow run if they kept this many processors busy, on average.
BUSY = 0.25


@dataclass
class Run:
    accuracy: float  # per cent
    images_per_second: float
    parameters: dict[str, torch.Tensor]  # after the first epoch
    others: float  # processors that other programs kept busy meanwhile


def run(processes: int) -> Run:
    launcher = [sys.executable, "-m", "perseus.run", "--quiet", "--no-tag", "-np", str(processes)]
    command = [*launcher, "--", sys.executable, str(ROOT / EXAMPLE), *sys.argv[1:]]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        command += ["--checkpoint", f"{folder}/{{epoch}}.pt"]
        lines = []
        began, busy, own = time.monotonic(), busy_seconds(), children_seconds()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout
            for line in job.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        if job.returncode != 0:
            sys.exit(f"make demo: training with {processes} processes failed ({job.returncode})")
        others = (busy_seconds() - busy) - (children_seconds() - own)
        others = max(0.0, others / (time.monotonic() - began))
        parameters = torch.load(f"{folder}/1.pt", weights_only=True)["model"]
    found = re.search(r"test accuracy ([\d.]+) %, (\d+) images/s", "".join(lines))
    assert found, lines
    return Run(float(found[1]), float(found[2]), parameters, others)


def busy_seconds() -> float:
    """Returns the processor seconds that this machine has been busy for, or was not given by a
    hypervisor; proc(5) lists the columns."""
    columns = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = columns
    ticks = user + nice + system + interrupts + soft_interrupts + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def largest_difference(one: dict[str, torch.Tensor], many: dict[str, torch.Tensor]) -> float:
    """Returns it over all parameters, relative to the largest element of each tensor."""
    return max(float((one[name] - many[name]).abs().max() / one[name].abs().max()) for name in one)


def why_not_faster(processors: int, others: float) -> str:
    if processors < PROCESSES:
        return (
            f"{PROCESSES} processes could not be faster here: this machine gives them "
            f"{processors} processor, on which they take turns."
        )
    if others >= BUSY:
        return (
            f"{PROCESSES} processes were not clearly faster: other programs kept {others:.1f} of "
            f"this machine's {os.cpu_count()} processors busy meanwhile."
        )
    return (
        f"{PROCESSES} processes were not clearly faster, although nothing else was running: "
        "docs/troubleshooting.md says where to look."
    )


def main() -> None:
    processors = len(os.sched_getaffinity(0))
    rounds: list[tuple[Run, Run]] = []
    while True:
        print(f"Training a small CNN on 5,000 handwritten digits with {PROCESSES} processes:")
        many = run(PROCESSES)
        print("\nThe same with one process:", flush=True)
        rounds.append((many, run(1)))
        speeds = [max(run.images_per_second for run in runs) for runs in zip(*rounds, strict=True)]
        ratio = speeds[0] / speeds[1]
        if ratio >= FASTER or processors < PROCESSES or len(rounds) == ROUNDS:
            break
        print(
            "\nOther programs may have been in the way, so both run again; the faster run of each "
            "counts.\n",
            flush=True,
        )

    many, one = rounds[-1]
    difference = largest_difference(one.parameters, many.parameters)
    print(
        f"""
{"":26}{"1 process":>14}{f"{PROCESSES} processes":>14}
{"images per second":26}{speeds[1]:>14,.0f}{speeds[0]:>14,.0f}
{"test accuracy":26}{one.accuracy:>12.1f} %{many.accuracy:>12.1f} %
"""
    )
    if difference > TOLERANCE:
        sys.exit(
            f"make demo: FAILED. After the first epoch a parameter of one run differs from the "
            f"other's by {difference:.1e} of its tensor's largest element, where float32 rounding "
            f"explains up to {TOLERANCE:.0e}."
        )
    print(
        f"PASSED: both runs trained the same model. After the first epoch their parameters differ "
        f"by\n{difference:.0e} of the largest at most, which is float32 rounding."
    )
    if ratio >= FASTER:
        print(f"{PROCESSES} processes were {ratio:.1f} times as fast as one.")
    else:
        print(why_not_faster(processors, max(run.others for pair in rounds for run in pair)))
    print(
        f"""
What next:
  {EXAMPLE:30}  the program that just ran
  {"docs/quickstart.md":30}  your own script with Perseus
  {"docs/migrating.md":30}  if your script uses Horovod"""
    )


if __name__ == "__main__":
    main()
