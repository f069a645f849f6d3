"""The errors of networks that dbn.py has pre-trained in several ways, with several seeds."""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import signal
from typing import Any

import torch

from contest import dbn_training as training
from contest import ending, paired, report
from contest.dbn_data import load
from contest.progress import progress

#: The delays of the pipelines that are compared.
DELAYS = (0.0, 0.05, 0.25)
METHODS = ("none", "greedy", *(f"pipeline, delay {delay:g}" for delay in DELAYS))


def errors_of(case: tuple[str, int, str], options: dict[str, Any]) -> dict[int, float]:
    """Returns the test error for each number of layers, of one kind of pre-training and seed."""
    torch.set_num_threads(1)
    name, seed, method = case
    data = load(name, options["rows"], options["test_rows"])
    parameters = training.Parameters(hidden=options["error_hidden"], epochs=options["epochs"])
    layers = training.stages(data, max(options["error_layers"]), parameters, seed)
    rows = training.Rows(torch.from_numpy(data.train[0]), parameters.batch, seed)
    if method == "greedy":
        training.greedy(layers, rows, parameters.epochs, recompute=False)
    elif method != "none":
        delay = float(method.rpartition(" ")[2])
        training.pipelined(layers, rows, parameters.epochs, options["chunk"], delay)

    def modules() -> list[torch.nn.Module]:
        if method == "none":
            return training.untrained(layers, seed)
        return [layer.module() for layer in layers]

    # Upper layers have no influence on lower ones, so that one network gives all smaller ones.
    return {
        count: training.fine_tuned(modules()[:count], data, options["tuning_epochs"], 64, seed)
        for count in options["error_layers"]
    }


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which ends its pool
    ending.with_parent()


def measure_errors(args: argparse.Namespace, whole: report.Report) -> None:
    cases = list(itertools.product(args.data, range(args.seeds), METHODS))
    kept = whole.also.setdefault("runs", [])
    work = functools.partial(errors_of, options=vars(args))
    # Leaving the pool ends its processes, also in the middle of their work.
    with multiprocessing.get_context("spawn").Pool(args.ranks, _begin_worker) as pool:
        for case, found in zip(progress(cases, "errors"), pool.imap(work, cases), strict=True):
            name, seed, method = case
            kept += [
                {"data": name, "seed": seed, "method": method, "layers": layers, "error": error}
                for layers, error in found.items()
            ]
            whole.save()
    rows = whole.also.setdefault("errors", [])
    for name, layers in itertools.product(args.data, args.error_layers):
        by_method = {
            method: [
                one["error"]
                for one in kept
                if (one["data"], one["layers"], one["method"]) == (name, layers, method)
            ]
            for method in METHODS
        }
        for method, values in by_method.items():
            mean, half = paired.interval(values)
            change, uncertain = paired.difference(values, by_method["greedy"])
            rows.append(
                {
                    **{"data": name, "layers": layers, "method": method, "seeds": len(values)},
                    **{"error": mean, "interval": half},
                    **{"to_greedy": change, "to_greedy_interval": uncertain},
                }
            )
            print_error(rows[-1])
    whole.save()


def print_error(row: dict[str, Any]) -> None:
    def percent(value: float, half: float | None, sign: str = "") -> str:
        return f"{100 * value:{sign}.2f}" + (f" +-{100 * half:.2f}" if half is not None else "")

    print(
        f"{row['data']:7} {row['layers']} layers  {row['method']:22} "
        f"{percent(row['error'], row['interval']):>14} %   to greedy "
        f"{percent(row['to_greedy'], row['to_greedy_interval'], '+')} %",
        flush=True,
    )
