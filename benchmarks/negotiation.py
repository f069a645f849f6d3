"""The cost of agreeing: messages, bytes and time against the number of ranks.

.venv/bin/python benchmarks/negotiation.py [--quick] [--json FILE] [--plot FILE]

1. Real processes: messages and bytes of an agreement with 100 tensors in flight, and the time of an
   agreement alone, measured with barriers, which consist of nothing else.
2. A training step's 161 gradients over shared memory: agreements and their messages in a step.
3. Many ranks: the engine's own negotiators over simulated links (benchmarks/negotiation/), beside
   Horovod's schemes under the same model. Times run from the last rank's submission until the last
   rank knows the outcome. `--model between_latency_ns=50000` and the like change the model.
   `--plot FILE.svg` draws them, and the messages to FILE-messages.svg.
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contest import charts, ending, simulation
from contest.arguments import Different, at_least, setting
from contest.progress import progress
from contest.ranks import run
from contest.report import Report, add_arguments

COUNTED = ("agreements", "agreement_messages_sent", "agreement_bytes_sent", "merges", "shards")

# The next two functions run on the ranks of real jobs.


def count_agreements(rounds: int, names: int) -> dict[str, list[float]]:
    """Returns counters of the first and of later rounds of `names` operations, and barrier
    times."""
    import numpy as np

    import perseus_core as core

    core.init()
    values = [np.zeros(1, np.float32) for _ in range(names)]

    def counted(repeat: int) -> list[float]:
        core.barrier()
        before = core.counters()
        for _ in range(repeat):
            handles = [
                core.allreduce_async(value, out=value, name=f"value{i}")
                for i, value in enumerate(values)
            ]
            for handle in handles:
                handle.wait()
        after = core.counters()
        core.barrier()
        return [after[name] - before[name] for name in COUNTED]

    first, steady = counted(1), counted(rounds)
    times = []
    for _ in range(10 * rounds):
        begin = time.perf_counter()
        core.barrier()
        times.append(1e6 * (time.perf_counter() - begin))
    core.shutdown()
    return {"first": first, "steady": steady, "times_us": times}


def count_in_steps(
    steps: int, tensors: list[tuple[str, tuple[int, ...]]], backward_s: float
) -> dict[str, float]:
    """Returns counters in a step; the last layer's gradients come first, over `backward_s`
    seconds."""
    import numpy as np

    import perseus_core as core

    core.init()
    gradients = [(name, np.zeros(shape, np.float32)) for name, shape in reversed(tensors)]

    def step() -> None:
        begin = time.perf_counter()
        handles = []
        for i, (name, gradient) in enumerate(gradients):
            due = begin + backward_s * i / len(gradients)
            time.sleep(max(0.0, due - time.perf_counter()))
            handles.append(core.allreduce_async(gradient, out=gradient, name=name, priority=i))
        for handle in handles:
            handle.wait()

    for _ in range(3):
        step()
    core.barrier()
    before = core.counters()
    for _ in range(steps):
        step()
    after = core.counters()
    core.barrier()
    core.shutdown()
    return {name: (after[name] - before[name]) / steps for name in COUNTED}


def real_agreements(sizes: list[int], rounds: int, names: int) -> Iterator[dict]:
    for size in progress(sizes, "real processes"):
        results = run(count_agreements, args=(rounds, names), num_proc=size)
        per_agreement = [r["steady"][1] / r["steady"][0] for r in results]
        # The slowest rank of each barrier gives the time of the agreement.
        times = [max(times) for times in zip(*(r["times_us"] for r in results), strict=True)]
        first_agreements, first_messages, first_bytes = results[0]["first"][:3]
        yield {
            "ranks": size,
            "names": names,
            "messages_an_agreement": [min(per_agreement), max(per_agreement)],
            "messages_an_agreement_of_rank_0": per_agreement[0],
            "bytes_a_message": sum(r["steady"][2] for r in results)
            / sum(r["steady"][1] for r in results),
            "first_round_of_rank_0": [first_agreements, first_messages, first_bytes],
            "time_us": percentiles(times),
        }


def real_steps(sizes: list[int], steps: int) -> Iterator[dict]:
    backwards = {"over 30 ms": 0.03, "all at once": 0.0}
    for size, (how, seconds) in progress(
        [(size, item) for size in sizes for item in backwards.items()], "training steps"
    ):
        arguments = (steps, simulation.NAMES["ResNet-50"], seconds)
        results = run(count_in_steps, args=arguments, num_proc=size)
        mean = {name: statistics.mean(r[name] for r in results) for name in COUNTED}
        yield {"ranks": size, "gradients": how, **mean}


def percentiles(times: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(times, n=10)
    return {"p10": tenths[0], "median": statistics.median(times), "p90": tenths[8]}


def print_real(rows: list[dict]) -> None:
    print("Real processes on this machine. Time: of an agreement alone, the slowest rank's.")
    print("ranks  ceil(log2 N)  messages a rank  of rank 0  bytes each  us: p10, median, p90")
    for row in rows:
        least, most = row["messages_an_agreement"]
        time_us = row["time_us"]
        print(
            f"{row['ranks']:5d}  {math.ceil(math.log2(row['ranks'])):12d}"
            f"  {least:6.2f} .. {most:<5.2f}  {row['messages_an_agreement_of_rank_0']:9.2f}"
            f"  {row['bytes_a_message']:10.0f}"
            f"  {time_us['p10']:8.1f} {time_us['median']:8.1f} {time_us['p90']:8.1f}"
        )


def print_steps(rows: list[dict]) -> None:
    print("\nResNet-50's 161 gradients over shared memory: a training step of each rank.")
    print("ranks  gradients     agreements  messages  bytes  merged units  shards")
    for row in rows:
        print(
            f"{row['ranks']:5d}  {row['gradients']:12}  {row['agreements']:10.1f}"
            f"  {row['agreement_messages_sent']:8.1f}  {row['agreement_bytes_sent']:5.0f}"
            f"  {row['merges']:12.1f}  {row['shards']:6.1f}"
        )


def print_simulated(rows: list[dict]) -> None:
    for title in simulation.NAMES:
        for state, schemes in simulation.STATES.items():
            found = {
                (row["ranks"], row["contender"]): row
                for row in rows
                if row["names"] == title and row["state"] == state
            }
            print(f"\nSimulated, {title}, {state}: us (times Perseus; most messages of a rank)")
            print("  ranks" + "".join(f"{scheme:>28}" for scheme in schemes))
            for size in sorted({size for size, _ in found}):
                ours = found.get((size, "perseus"))
                cells = [_cell(found.get((size, scheme)), ours) for scheme in schemes]
                print(f"{size:7d}" + "".join(f"{cell:>28}" for cell in cells))
    print()
    for scheme, meaning in simulation.SCHEMES.items():
        print(f"{scheme:16}  {meaning}")
    print(
        "Horovod looks for work once in a cycle, of 1 ms by default: that adds up to a cycle, and\n"
        "half a one on average, to its times here. Perseus has no cycle."
    )


def _cell(row: dict | None, ours: dict | None) -> str:
    if row is None:
        return "-"
    ratio = f"{row['median'] / ours['median']:.1f}x; " if ours and row is not ours else ""
    return f"{row['median']:.0f} ({ratio}{most_messages(row)})"


def gather(rows: Iterable[dict], report: Report) -> None:
    for row in rows:
        report.rows.append(row)
        report.save()


def most_messages(row: dict) -> int:
    """Returns the most messages of any rank, sent or received, whichever is more."""
    return max(row["messages_sent"][1], row["messages_received"][1])


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws the times of simulated agreements, and their messages beside `file`, in
    negotiation-messages.svg."""
    panels = charts.panels(content["rows"], "names", "state")
    charts.lines(
        panels,
        file,
        charts.Words(
            "Time of an agreement, simulated",
            "from the last rank's submission until the last rank knows the outcome",
        ),
        x="ranks",
        scale=charts.DURATION,
        columns=2,
    )
    charts.lines(
        panels,
        file.with_stem(f"{file.stem}-messages"),
        charts.Words(
            "Messages of an agreement, simulated", "those of the busiest rank, sent or received"
        ),
        x="ranks",
        scale=charts.Scale(charts.three_digits, most_messages),
        columns=2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    parser.add_argument(
        "--ranks",
        type=at_least(2),
        nargs="*",
        action=Different,
        help="numbers of real processes; an empty list skips this part",
    )
    parser.add_argument(
        "--step-ranks", type=at_least(2), nargs="*", action=Different, default=[2, 4]
    )
    parser.add_argument(
        "--simulated", type=at_least(2), nargs="*", action=Different, help="simulated ranks"
    )
    parser.add_argument("--names", type=at_least(1), default=100, help="tensors in flight at once")
    parser.add_argument("--rounds", type=at_least(1), help="of real processes")
    parser.add_argument(
        "--model",
        type=setting(simulation.SETTINGS),
        nargs="*",
        default=[],
        help="NAME=VALUE of the simulator",
    )
    args = parser.parse_args()
    real = args.ranks if args.ranks is not None else [2, 4, 8] if args.quick else [2, 4, 8, 16, 32]
    rounds = args.rounds or (20 if args.quick else 200)
    simulated = args.simulated
    if simulated is None:
        simulated = simulation.QUICK_RANKS if args.quick else simulation.RANKS

    if not (real or args.step_ranks or simulated):
        parser.error("--ranks, --step-ranks and --simulated leave nothing to measure")
    if args.plot and not simulated:
        parser.error("argument --plot: simulated ranks are drawn, and --simulated has none")

    report = Report("negotiation", file=args.json, also={"model": args.model})
    processes, steps = report.section("processes"), report.section("steps")
    if real:
        gather(real_agreements(real, rounds, args.names), processes)
        print_real(processes.rows)
    if args.step_ranks:
        gather(real_steps(args.step_ranks, 5 if args.quick else 50), steps)
        print_steps(steps.rows)
    if simulated:
        gather(simulation.agreements(simulated, args.model), report)
        print_simulated(report.rows)
    report.save(finished=True)
    if args.plot:
        draw(report.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
