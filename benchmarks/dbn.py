"""Pre-training of deep belief networks: one layer after the other, and as a pipeline.

python benchmarks/dbn.py [--data digits speech] [--layers 4 5 6 7 8] [--ranks 2] [--quick]
                         [--parts times errors] [--seeds 5] [--json FILE] ...

It repeats Tables 2 and 3 of Ma, Li, Yang and Zhang, "A pipelined pre-training algorithm for DBNs"
(2017), with the parameters of their Table 1 unless options say otherwise.

Times. Greedy training that computes lower layers anew for every mini-batch; greedy training that
keeps each layer's results; the pipeline in one process; and the pipeline with a rank for each
layer. With fewer processors than layers, the last is a replay: the schedule of that many ranks,
with the measured processor time of every stage and chunk and the measured time of a link. Real runs
at --ranks show how far a replay is from them. All contenders have one thread, and seconds are of
its processor time, which other programs do not stretch; those of real runs are of the clock.
--timed-epochs are measured, and stand for all epochs.

Errors. The share of test rows that the network gets wrong after fine-tuning: without pre-training,
greedy, and as a pipeline with several delays. Each difference to greedy is that of runs with the
same seed; intervals are of 95 %.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from contest import dbn_training as training
from contest import ending, report
from contest.arguments import Different, at_least
from contest.dbn_data import Data, load
from contest.dbn_errors import DELAYS, measure_errors
from contest.layer_replay import Stage, cycled, replay
from contest.progress import progress
from contest.ranks import run

BENCHMARKS = str(Path(__file__).resolve().parent)
ROOM = 2


def measure_alone(data: Data, args: argparse.Namespace, layers: int) -> dict[str, Any]:
    """Returns seconds of each layer in one process, for --timed-epochs."""
    parameters = training.Parameters(hidden=args.hidden)
    rows = training.Rows(torch.from_numpy(data.train[0]), parameters.batch, seed=0)

    def fresh() -> list[Any]:
        return training.stages(data, layers, parameters, seed=0)

    anew = training.greedy(fresh(), rows, args.timed_epochs, recompute=True)
    kept = training.greedy(fresh(), rows, args.timed_epochs, recompute=False)
    times = training.pipelined(fresh(), rows, args.timed_epochs, args.chunk, 0.0)
    return {
        "recomputing": anew.training,
        "caching": kept.training,
        "keeping": kept.keeping,
        "chunks": [one.processor for one in times],
        "updates": args.timed_epochs * len(rows(0)),
    }


def measure_on_ranks(
    benchmarks: str, name: str, rows: int, layers: int, hidden: int, epochs: int, chunk: int
) -> dict[str, Any]:
    """Runs on each rank. Returns the seconds of a real pipeline, alone and on all ranks."""
    sys.path.append(benchmarks)
    import numpy as np
    import torch
    from contest import dbn_data
    from contest import dbn_training as training

    import perseus.torch.horovod as hvd
    import perseus_core
    from perseus.pipeline.layerwise import LayerWise

    alone = hvd.ProcessSet([0])
    hvd.init(process_sets=[alone])
    torch.set_num_threads(1)
    data = dbn_data.load(name, rows, 1)
    parameters = training.Parameters(hidden=hidden)
    batches = training.Rows(torch.from_numpy(data.train[0]), parameters.batch, seed=0)

    def timed(process_set: Any) -> tuple[float, Any]:
        stages = training.stages(data, layers, parameters, seed=0)
        pipeline = LayerWise(stages, chunk=chunk, room=ROOM, process_set=process_set)
        began = time.perf_counter()
        times = pipeline.train(batches, epochs)
        return time.perf_counter() - began, times

    # Without contention: the others wait, and use no processor.
    alone_seconds = timed(alone)[0] if hvd.rank() == 0 else None
    hvd.barrier()
    timed(hvd.global_process_set)  # the links are warm
    hvd.barrier()
    seconds, times = timed(hvd.global_process_set)

    message = np.zeros(chunk * parameters.batch * hidden * 4, np.uint8)
    there_and_back = []
    for _ in range(20):
        hvd.barrier()
        began = time.perf_counter()
        if hvd.rank() == 0:
            perseus_core.send(message, 1)
            perseus_core.recv(1)
        elif hvd.rank() == 1:
            perseus_core.send(perseus_core.recv(0).array, 0)
        there_and_back.append(time.perf_counter() - began)
    hvd.shutdown()
    return {
        "alone": alone_seconds,
        "seconds": seconds,
        "ranks": [one.rank for one in times],
        "chunks": [one.chunks for one in times],
        "waiting": [one.waiting_for_input + one.waiting_for_output for one in times],
        "link": statistics.median(there_and_back) / 2,
    }


def real_run(data: str, args: argparse.Namespace, layers: int, ranks: int) -> dict[str, Any]:
    """Returns a real run's seconds beside those of its replay from the times of that very run."""
    found = run(
        measure_on_ranks,
        args=(
            *(BENCHMARKS, data, args.timed_rows, layers),
            *(args.hidden, args.timed_epochs, args.chunk),
        ),
        num_proc=ranks,
    )[0]
    stages = [
        Stage(rank, 0, chunks) for rank, chunks in zip(found["ranks"], found["chunks"], strict=True)
    ]
    replayed = replay(stages, found["link"], ROOM)
    return {
        "data": data,
        "layers": layers,
        "ranks": ranks,
        "one_process": found["alone"],
        "seconds": found["seconds"],
        "replayed": replayed,
        "replay_error": replayed / found["seconds"] - 1,
        "speedup": found["alone"] / found["seconds"],
        "link_ms": found["link"] * 1e3,
    }


def time_row(
    data: str, measured: dict[str, Any], link: float, args: argparse.Namespace, layers: int
) -> dict[str, Any]:
    """Returns a column of Table 3, of all epochs."""
    scale = args.epochs / args.timed_epochs
    keeping = sum(measured["keeping"][:layers])
    updates = round(measured["updates"] * scale)
    chunks = -(-updates // args.chunk)
    row: dict[str, Any] = {
        "data": data,
        "layers": layers,
        "chunks": chunks,
        "recomputing": scale * sum(measured["recomputing"][:layers]),
        "caching": scale * sum(measured["caching"][:layers]) + keeping,
        "one_process": scale * sum(map(sum, measured["chunks"][:layers])),
    }
    for delay in DELAYS:
        # A stage that only computes counts as if it still trained.
        first = math.ceil(delay * chunks)
        total = chunks + (layers - 1) * first
        stages = [
            Stage(rank, rank * first, cycled(seconds, total - rank * first))
            for rank, seconds in enumerate(measured["chunks"][:layers])
        ]
        row[f"replay, delay {delay:g}"] = replay(stages, link, ROOM)
    on_ranks = row["replay, delay 0"]
    row["speedup"] = row["recomputing"] / on_ranks
    row["speedup_caching"] = row["caching"] / on_ranks
    row["efficiency"] = row["speedup_caching"] / layers
    return row


def measure_times(args: argparse.Namespace, whole: report.Report) -> None:
    rows = whole.also.setdefault("times", [])
    real = whole.also.setdefault("real_runs", [])
    cores = len(os.sched_getaffinity(0))
    most = max(args.layers)
    for name in args.data:
        data = load(name, args.timed_rows, 1)
        pairs = [(layers, args.ranks) for layers in args.real_layers]
        pairs += [(layers, layers) for layers in args.layers if args.ranks < layers <= cores]
        for layers, ranks in progress(pairs, f"{name}, real runs"):
            real.append(real_run(name, args, layers, ranks))
            print_real(real[-1])
            whole.save()
        rounds = [measure_alone(data, args, most) for _ in progress(range(args.rounds), name)]
        link = statistics.median(one["link_ms"] for one in real if one["data"] == name) / 1e3
        measured = median_of(rounds)
        for layers in args.layers:
            rows.append(time_row(name, measured, link, args, layers))
            print_times(rows[-1])
        whole.save()


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of the rounds, number by number."""

    def merged(values: list[Any]) -> Any:
        if isinstance(values[0], list):
            return [merged(list(parts)) for parts in zip(*values, strict=True)]
        return statistics.median(values)

    return {name: merged([one[name] for one in rounds]) for name in rounds[0]}


def print_real(row: dict[str, Any]) -> None:
    print(
        f"{row['data']}, {row['layers']} layers on {row['ranks']} ranks, by the clock: "
        f"{row['seconds']:.2f} s, {row['speedup']:.2f}x of one process; "
        f"replay {row['replayed']:.2f} s ({100 * row['replay_error']:+.1f} %); "
        f"link {row['link_ms']:.2f} ms",
        flush=True,
    )


def print_times(row: dict[str, Any]) -> None:
    layers = row["layers"]
    print(f"{row['data']}, {layers} layers, {row['chunks']} chunks, seconds")
    print(f"  greedy, recomputing lower layers  {row['recomputing']:8.1f}")
    print(f"  greedy, keeping results           {row['caching']:8.1f}")
    print(f"  pipeline in one process           {row['one_process']:8.1f}")
    for delay in DELAYS:
        seconds = row[f"replay, delay {delay:g}"]
        print(f"  replay of {layers} ranks, delay {delay:4g}     {seconds:8.1f}")
    print(
        f"  {row['speedup']:.2f}x of greedy that recomputes, {row['speedup_caching']:.2f}x of "
        f"greedy that keeps results: efficiency {row['efficiency']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    some = {"nargs": "+", "action": Different}
    parser.add_argument(
        "--data", choices=("digits", "speech"), default=["digits", "speech"], **some
    )
    parser.add_argument("--parts", choices=("times", "errors"), default=["times", "errors"], **some)
    parser.add_argument("--epochs", type=at_least(1), default=20, help="20, as in Table 1")
    parser.add_argument("--chunk", type=at_least(1), default=1, help="mini-batches in a chunk")
    parser.add_argument("--ranks", type=at_least(2), default=2, help="of real runs; processes")
    times = parser.add_argument_group("times")
    times.add_argument("--layers", type=at_least(2), default=[4, 5, 6, 7, 8], **some)
    times.add_argument("--real-layers", type=at_least(2), default=[4, 6], **some)
    times.add_argument("--hidden", type=at_least(1), help="units of a layer; 1024")
    times.add_argument("--timed-epochs", type=at_least(1), help="that are measured; 2")
    times.add_argument("--timed-rows", type=at_least(256), help="rows of an epoch; 4000")
    times.add_argument("--rounds", type=at_least(1), help="of which medians are taken; 3")
    errors = parser.add_argument_group("errors")
    errors.add_argument("--error-layers", type=at_least(1), **some, help="4 5 6")
    errors.add_argument("--error-hidden", type=at_least(1), help="units of a layer; 1024")
    errors.add_argument("--seeds", type=at_least(1), help="5")
    errors.add_argument("--rows", type=at_least(256), help="to train on; 4000")
    errors.add_argument("--test-rows", type=at_least(1), default=2000)
    errors.add_argument("--tuning-epochs", type=at_least(1), help="20")
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    if min(args.real_layers) < args.ranks:
        parser.error(f"argument --real-layers: {args.ranks} ranks need a layer each")
    for name, (normal, quick) in {
        "hidden": (1024, 128),
        "timed_epochs": (2, 1),
        "timed_rows": (4000, 1024),
        "rounds": (3, 1),
        "error_layers": ([4, 5, 6], [2, 4]),
        "error_hidden": (1024, 64),
        "seeds": (5, 2),
        "rows": (4000, 1024),
        "tuning_epochs": (20, 5),
    }.items():
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else normal)
    torch.set_num_threads(1)
    whole = report.Report(
        "dbn",
        file=args.json,
        also={"arguments": {name: value for name, value in vars(args).items() if name != "json"}},
    )
    if "times" in args.parts:
        measure_times(args, whole)
    if "errors" in args.parts:
        measure_errors(args, whole)
    whole.save(finished=True)


if __name__ == "__main__":
    with ending.by_exception():
        main()
