"""Runs the simulator of negotiation (benchmarks/negotiation/) for Perseus and Horovod."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator

from contest import built, models
from contest.arguments import at_least, positive
from contest.progress import progress

SIMULATOR = "negotiation_simulator"

RANKS = sorted([2**k for k in range(1, 15)] + [3, 6, 12, 48, 100, 1000, 5000, 12000])
QUICK_RANKS = [2, 12, 128, 1024]
# Horovod's Gloo controller passes each rank's requests round a ring: 2 N^2 simulated messages.
MOST_RANKS = {"coordinator-gloo": 1024}
# A simulated negotiator takes about 1,000 bytes for each name: this is 2.5 GB.
MOST_NAMES_TIMES_RANKS = 161 * 16384
#: The fields that --model may change; see benchmarks/negotiation/main.cc.
SETTINGS: dict[str, Callable[[str], float]] = {
    "ranks_per_host": at_least(1),
    "spread_ns": at_least(0),
    "inside_overhead_ns": at_least(0),
    "inside_latency_ns": at_least(0),
    "inside_bytes_per_ns": positive,
    "between_overhead_ns": at_least(0),
    "between_latency_ns": at_least(0),
    "between_bytes_per_ns": positive,
}
STATES = {
    "steady state": ("perseus", "coordinator", "cached-mpi", "cached-gloo"),
    "first sight": ("perseus", "coordinator", "coordinator-mpi", "coordinator-gloo"),
}
SCHEMES = {
    "perseus": "Perseus: bitmaps of known names, records of new ones",
    "coordinator": "Horovod without its cache: rank 0 hears N-1 lists and answers N-1 times",
    "coordinator-mpi": "Horovod 0.28.1 over MPI, names not cached: gather, gatherv, 2 broadcasts",
    "coordinator-gloo": "Horovod 0.28.1 over Gloo, names not cached: 2 allgathers, 2 broadcasts",
    "cached-mpi": "Horovod 0.28.1 over MPI, names cached: allreduce of bits, recursive doubling",
    "cached-gloo": "Horovod 0.28.1 over Gloo, names cached: allreduce of bits, Gloo's ring",
}

Tensors = list[tuple[str, tuple[int, ...]]]
NAMES: dict[str, Tensors] = {
    "ResNet-50": [(tensor.name, tensor.shape) for tensor in models.model("resnet50").tensors],
    "1,000 names": [(f"embedding{i}.weight", (1024, 16)) for i in range(1000)],
}


def simulate(
    scheme: str, ranks: int, tensors: Tensors, rounds: int, model: list[str]
) -> list[dict]:
    """Returns the simulator's rounds; see the head of benchmarks/negotiation/main.cc."""
    simulator = built.program(SIMULATOR)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        for name, shape in tensors:
            print(f"allreduce.{name}", *shape, file=file)  # as the Python API names them
        file.flush()
        options = [f"scheme={scheme}", f"ranks={ranks}", f"names={file.name}", f"rounds={rounds}"]
        result = subprocess.run(
            [simulator, *options, *model], check=True, stdout=subprocess.PIPE, text=True
        )
    return [json.loads(line) for line in result.stdout.splitlines()]


def agreements(sizes: list[int], model: list[str]) -> Iterator[dict]:
    """Yields rows for a Report: first and later agreements, for each scheme and number of ranks."""
    jobs = [
        (title, scheme, size)
        for title, tensors in NAMES.items()
        for size in sorted(sizes)
        for scheme in SCHEMES
        if size <= MOST_RANKS.get(scheme, size)
        and (scheme != "perseus" or size * len(tensors) <= MOST_NAMES_TIMES_RANKS)
    ]
    for title, scheme, size in progress(jobs, "simulated ranks"):
        first, *steady = simulate(scheme, size, NAMES[title], 4, model)
        for state, rounds in (("first sight", [first]), ("steady state", steady)):
            if scheme in STATES[state]:
                times = [row["time_us"] for row in rounds]
                spread = {"p10": min(times), "median": statistics.median(times), "p90": max(times)}
                case = {"names": title, "state": state, "contender": scheme}
                yield {**case, **rounds[0], **spread}
