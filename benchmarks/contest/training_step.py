"""Training steps of one model, by all contenders in turns: shared by step.py and hosts.py."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contest import charts
from contest.conductor import Conductor
from contest.launch import KNOWN, Contender, variant
from contest.models import forward_seconds, model
from contest.report import Report
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


def draw_exposed(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draws bars of exposed communication, a panel for each case, with a tick for each bound.

    Rows without exposed communication are left out.
    """
    drawn = charts.measured(rows, "exposed")
    hosts = len({(row.get("hosts"), row["ranks"]) for row in drawn}) > 1
    titles = [_title(row, with_place=hosts) for row in drawn]
    charts.bars(
        [
            charts.Panel(
                title, [row for row, its in zip(drawn, titles, strict=True) if its == title]
            )
            for title in dict.fromkeys(titles)
        ],
        file,
        charts.Words(
            f"Communication that computing does not hide, {_place(drawn[0])}"
            if not hosts
            else "Communication that computing does not hide",
            f"{_caps(drawn[0])}line: lower bound; both off: without priority and forward overlap",
        ),
        scale=charts.Scale(charts.duration, lambda row: row["exposed"]),
    )


def _title(row: Mapping[str, Any], with_place: bool) -> str:
    model = charts.case_text("work", row["work"])
    return f"{model}, {_place(row)}" if with_place else model


def _caps(row: Mapping[str, Any]) -> str:
    """Returns the limits of links as people write them, from those of hosts.py, if any."""
    if "caps" not in row:
        return ""
    limits = [int(number) for number in re.findall(r"\d+", row["caps"])]
    texts = [f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit} Mbit/s" for mbit in limits]
    kinds = [f"links of {texts[0]}", *(f"{text} a connection" for text in texts[1:])]
    return f"{', '.join(kinds)}; "


def _place(row: Mapping[str, Any]) -> str:
    hosts = f" on {row['hosts']} hosts" if row.get("hosts", 1) > 1 else ""
    return f"{row['ranks']} ranks{hosts}"
