"""Training steps of one model, by all contenders in turns: shared by step.py and hosts.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contest.conductor import Conductor
from contest.launch import KNOWN, Contender, variant
from contest.models import forward_seconds, model
from contest.report import Report, measured
from contest.step_bound import step_seconds

PERSEUS = "perseus"
OFF = "perseus, both off"
FIRST_COME = "perseus, 4 MB first-come"

#: Only Perseus can start a forward pass before all gradients have arrived.
CONTENDERS: tuple[Contender, ...] = (
    variant("perseus numpy", PERSEUS, STEP_OVERLAP="1", STEP_PRIORITY="1"),
    variant("perseus numpy", OFF),
    # ByteScheduler's way (Peng et al. 2019), without its priorities: tensors in parts of one fixed
    # size, some of them in flight, forward overlap.
    variant(
        "perseus numpy",
        FIRST_COME,
        STEP_OVERLAP="1",
        PERSEUS_ALLREDUCE_SHARD="4",
        PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING="1",
    ),
    KNOWN["horovod gloo"],
    KNOWN["horovod mpi"],
    variant("torch gloo", "torch gloo, 25 MB buckets", STEP_BUCKET_MB="25"),
)


def contenders(*, peers: bool) -> list[Contender]:
    return [one for one in CONTENDERS if peers or one.program.startswith("perseus")]


def overlaps(contender: Contender) -> bool:
    return contender.environment.get("STEP_OVERLAP") == "1"


def tune(contest: Conductor, steps: int, name: str = "resnet50") -> None:
    """Runs the steps in which Perseus finds its settings, without reporting them."""
    tuning = [
        label
        for label, one in contest.contenders.items()
        if one.program.startswith("perseus")
        and "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING" not in one.environment
    ]
    if steps > 0:
        contest.measure("step.gradients", turns=1, iterations=steps, only=tuning, name=name)


def measure(
    report: Report,
    case: Mapping[str, int | str],
    contest: Conductor,
    name: str,
    seconds_to_move: Callable[[int], float],
    *,
    slowdown: float,
    turns: int,
    iterations: int,
    peers: bool = True,
) -> list[dict[str, Any]]:
    """Measures steps of model `name` and returns the report's new rows. Without `peers` only
    Perseus takes part.

    `seconds_to_move` returns the least time that bytes of gradients take on the link. Rows also
    have, in microseconds: `compute`, a measured step without communication; `exposed`, how much
    longer the median step takes; `bound`, the least that this can be.
    """
    present = [label for label in contest.contenders if label not in contest.absent]
    options = {"name": name, "slowdown": slowdown}
    computed = contest.measure(
        "step.compute", turns=1, iterations=max(3, iterations), only=present[:1], **options
    )
    compute = min((times.median or 0.0 for times in computed.values()), default=0.0)
    labels = [
        label
        for label, one in contest.contenders.items()
        if peers or one.program.startswith(PERSEUS)
    ]
    times = contest.measure(
        "step.steps", turns=turns, iterations=iterations, only=labels, **options
    )
    before = len(report.rows)
    report.add(case, times)
    rows = report.rows[before:]
    least = {overlap: least_exposed(name, seconds_to_move, slowdown, overlap) for overlap in (0, 1)}
    for row in rows:
        median = row["median"]
        row["compute"] = compute
        row["exposed"] = None if median is None else max(0.0, median - compute)
        row["bound"] = least[overlaps(contest.contenders[row["contender"]])]
    return rows


def least_exposed(
    name: str, seconds_to_move: Callable[[int], float], slowdown: float, overlap: bool
) -> float:
    """Returns the lower bound of exposed communication, in microseconds."""
    trained = model(name)
    forward = forward_seconds(trained, slowdown=slowdown)
    moving = [seconds_to_move(4 * layer.elements) for layer in trained.layers]
    step = step_seconds(forward, [2 * seconds for seconds in forward], moving, overlap)
    return (step - 3 * sum(forward)) * 1e6


def print_steps(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """`times` is a contender's exposed communication as a multiple of the first one's."""
    print(f"{title}: compute {rows[0]['compute'] / 1e3:.1f} ms")
    print(f"  {'':26} {'step ms':>9}  {'p10 .. p90':19} {'exposed':>9} {'bound':>9}  {'times':>6}")
    first = rows[0]["exposed"]
    for row in rows:
        if row["median"] is None:
            print(f"  {row['contender']:26} {row['reason']}")
            continue
        step, low, high, exposed, bound = (
            f"{row[key] / 1e3:.1f}" for key in ("median", "p10", "p90", "exposed", "bound")
        )
        times = f"{row['exposed'] / first:.2f}x" if first else ""
        print(
            f"  {row['contender']:26} {step:>9}  {low + ' .. ' + high:19} {exposed:>9} {bound:>9}"
            f"  {times:>6}"
        )
    for row in below_bound(rows):
        share = row["exposed"] / row["bound"]
        print(f"  WARNING: {row['contender']} took {share:.1%} of its bound, which is then wrong")
    sys.stdout.flush()


def below_bound(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the rows that took less than is possible."""
    return [row for row in rows if row["exposed"] is not None and row["exposed"] < row["bound"]]


def plot_exposed(
    rows: Sequence[Mapping[str, Any]], file: Path, panel: Callable[[Mapping[str, Any]], str]
) -> None:
    """Draws bars of exposed communication, a panel for each model, with a tick for each bound.

    Rows without exposed communication are left out.
    """
    drawn = measured(rows, "exposed")

    from matplotlib import pyplot

    panels = list(dict.fromkeys(map(panel, drawn)))
    columns = min(len(panels), 3)
    rows_of_panels = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows_of_panels,
        columns,
        figsize=(1 + 3.2 * columns, 4.2 * rows_of_panels),
        squeeze=False,
        layout="tight",
    )
    for place in axes.flat[len(panels) :]:
        place.axis("off")
    for place, title in zip(axes.flat, panels, strict=False):
        shown = [row for row in drawn if panel(row) == title]
        positions = range(len(shown))
        place.bar(
            positions,
            [row["exposed"] / 1e3 for row in shown],
            color=["C0" if row["contender"].startswith(PERSEUS) else "C7" for row in shown],
        )
        for at, row in zip(positions, shown, strict=True):
            place.hlines(row["bound"] / 1e3, at - 0.4, at + 0.4, colors="black", linewidth=2)
        place.set_title(title, fontsize=10)
        names = [row["contender"] for row in shown]
        place.set_xticks(list(positions), names, rotation=40, ha="right", fontsize=8)
        place.grid(True, axis="y", alpha=0.25)
    for place in axes[:, 0]:
        place.set_ylabel("exposed, ms (line: lower bound)")
    figure.savefig(file, dpi=110)
