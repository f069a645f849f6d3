"""The speed of packing real models' gradients on the GPU, as a share of its own copies' rate.

python tests/gpu/copies.py GPU_KERNELS [--quick] [--figures FILE]

Runs the program gpu_kernels and, by turns with it, PyTorch's ways to the same end. Each measures
the rate of one large copy too, of which the figures are shares: bytes read and written a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import place
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from contest import models

MODELS = ("resnet50", "bert-large")
COPY_BYTES = 1 << 30
#: The least duration of a measurement.
LEAST_SECONDS = 0.004
COPY = ("", "copy")


@dataclass
class Measured:
    """bytes: read and written in a pass. seconds: of a pass, in each turn."""

    bytes: float
    seconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.bytes / statistics.median(self.seconds)


Rates = dict[tuple[str, str], Measured]


def add(rates: Rates, key: tuple[str, str], count: float, seconds: list[float]) -> None:
    rates.setdefault(key, Measured(count)).seconds += seconds


def run_program(program: Path, gradients: Path, turns: int, rates: Rates) -> None:
    command = [str(program), "bandwidth", str(gradients), "--turns", str(turns)]
    command += ["--copy", str(COPY_BYTES)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    for line in map(json.loads, done.stdout.splitlines()):
        add(rates, (line["model"], line["contender"]), line["bytes"], line["seconds"])


class Torch:
    """The same work in PyTorch, measured by events on the GPU."""

    def __init__(self) -> None:
        self._work: dict[tuple[str, str], tuple[float, Callable[[int], object]]] = {}
        self._passes: dict[tuple[str, str], int] = {}
        source, target = (torch.zeros(COPY_BYTES // 4, device="cuda") for _ in range(2))
        self._work[COPY] = (2.0 * COPY_BYTES, lambda _: target.copy_(source))
        for name in MODELS:
            self._add(name)
        for key in self._work:
            self._measure(key, 1)
            self._passes[key] = int(LEAST_SECONDS / max(self._measure(key, 2), 1e-6)) + 1

    def turn(self, rates: Rates) -> None:
        for key, (count, _) in self._work.items():
            add(rates, key, count, [self._measure(key, self._passes[key])])

    def _add(self, name: str) -> None:
        shapes = [tensor.shape for tensor in models.model(name).tensors]
        count = 8.0 * models.model(name).elements
        # Several, so that no cache holds the next one.
        places = []
        for _ in range(max(1, int(COPY_BYTES / (count / 2)))):
            tensors = [torch.zeros(shape, device="cuda") for shape in shapes]
            flat = torch.zeros(models.model(name).elements, device="cuda")
            parts = flat.split([tensor.numel() for tensor in tensors])
            views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
            rows = [tensor.view(-1) for tensor in tensors]
            places.append((tensors, views, rows, flat))

        def foreach(i: int) -> None:
            tensors, views, _, _ = places[i % len(places)]
            torch._foreach_copy_(views, tensors)

        def foreach_back(i: int) -> None:
            tensors, views, _, _ = places[i % len(places)]
            torch._foreach_copy_(tensors, views)

        def cat(i: int) -> None:
            _, _, rows, flat = places[i % len(places)]
            torch.cat(rows, out=flat)

        self._work[name, "torch._foreach_copy_"] = (count, foreach)
        self._work[name, "torch._foreach_copy_ back"] = (count, foreach_back)
        self._work[name, "torch.cat"] = (count, cat)

    def _measure(self, key: tuple[str, str], passes: int) -> float:
        """Returns the seconds of a pass."""
        _, work = self._work[key]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for i in range(passes):
            work(i)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / passes


def figures(ours: Rates, theirs: Rates) -> dict[str, object]:
    """Returns rates in GB/s, and each as a share of the same process's copy rate."""
    found: dict[str, object] = {
        "copy, GB/s": round(ours[COPY].rate / 1e9, 1),
        "copy in torch, GB/s": round(theirs[COPY].rate / 1e9, 1),
    }
    for rates in (ours, theirs):
        for (model, contender), measured in rates.items():
            if model:
                found[f"{model}: {contender}, GB/s"] = round(measured.rate / 1e9, 1)
                share = measured.rate / rates[COPY].rate
                found[f"{model}: {contender}, of copy"] = round(share, 3)
    for model in MODELS:
        pack = ours[model, "pack"].rate
        for peer, rates in (
            ("torch._foreach_copy_", theirs),
            ("a cudaMemcpyAsync each", ours),
        ):
            found[f"{model}: pack, times {peer}"] = round(pack / rates[model, peer].rate, 2)
        unpack = ours[model, "unpack"].rate
        back = theirs[model, "torch._foreach_copy_ back"].rate
        found[f"{model}: unpack, times torch._foreach_copy_"] = round(unpack / back, 2)
        found[f"{model}: pack is at least 0.9 of copy"] = bool(pack >= 0.9 * ours[COPY].rate)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path, metavar="GPU_KERNELS")
    place.add_arguments(parser)
    args = parser.parse_args()
    place.device()
    turns = 5 if args.quick else 21
    ours: Rates = {}
    theirs: Rates = {}
    in_torch = Torch()
    with tempfile.TemporaryDirectory() as folder:
        gradients = Path(folder) / "gradients"
        lines = [
            " ".join([name, *(str(tensor.elements) for tensor in models.model(name).tensors)])
            for name in MODELS
        ]
        gradients.write_text("\n".join(lines) + "\n")
        for _ in range(1 if args.quick else 3):
            run_program(args.program, gradients, turns, ours)
            for _ in range(turns):
                in_torch.turn(theirs)
    place.keep(figures(ours, theirs), args.figures)


if __name__ == "__main__":
    main()
