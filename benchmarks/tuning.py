"""The settings that Perseus tunes itself to, beside every fixed choice of a sweep.

python benchmarks/tuning.py [--works resnet50 bert-base ...] [--ranks 2 4] [--hosts 2]
                            [--quick] [--json FILE] [--plot FILE]

One contender tunes itself on the work. The others have fixed settings, all combinations of some
values, and do not tune. After a short round of all, the fastest, the defaults and the tuned one are
measured again, longer, in turns. Then the tuner's choice, the fastest of the others and the
defaults are set in new processes, several for each: some processes stay slower than others with the
same settings, and the fastest of many was partly lucky. Ratios are from that last round. Works are
all gradients of a model at once, and an allreduce of 64 MiB. Those over hosts run on network
namespaces with capped links (contest/lab.py), as root.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contest import charts, ending, report, sweep
from contest.arguments import Different, at_least
from contest.conductor import Conductor, Times
from contest.lab import open_lab, why_not
from contest.launch import Host, variant
from contest.progress import progress

BASE = "perseus numpy"
TUNED = "tuned"
MOST_STEPS = 50
#: Processes with the same settings, in the last round.
COPIES = 3

LADDERS = {"streams": (1, 4), "shard_mib": (0.25, 0.5, 1, 4), "merge_mib": (0.25, 0.5, 2)}
LADDERS_OVER_HOSTS = {
    "streams": (2, 4, 8),
    "shard_mib": (0.5, 1, 4),
    "merge_mib": (0.5, 4),
    "credit_mib": (16, 64),
    "chunk_kib": (32, 128),
}


@dataclass(frozen=True)
class Work:
    function: str
    options: Mapping[str, Any]
    text: str


WORKS = {
    "resnet50": Work("step.gradients", {"name": "resnet50"}, "all gradients of resnet50"),
    "bert-base": Work("step.gradients", {"name": "bert-base"}, "all gradients of bert-base"),
    "googlenet": Work("step.gradients", {"name": "googlenet"}, "all gradients of googlenet"),
    "ctr": Work("step.gradients", {"name": "ctr"}, "all gradients of ctr"),
    "allreduce": Work("collective.allreduce", {"elements": 16 << 20}, "allreduce of 64 MiB"),
}
IN_A_HOST = ("resnet50", "bert-base", "ctr", "allreduce")
#: A small model, because a sweep over links takes long.
OVER_HOSTS = ("googlenet",)


class Sweep:
    """The contenders of one setup: ranks on this host, or on several."""

    def __init__(
        self, args: argparse.Namespace, ranks: int, hosts: Sequence[Host], works: Sequence[str]
    ) -> None:
        self._args = args
        self._place = ranks, hosts
        self._folder = tempfile.TemporaryDirectory(prefix="tuning-")
        ladders = LADDERS_OVER_HOSTS if hosts else LADDERS
        if args.quick:  # the first and last value of each
            ladders = {name: values[:: len(values) - 1] for name, values in ladders.items()}
        self._names = list(ladders)
        self._fixed = {sweep.text(values): values for values in sweep.grid(ladders)}
        self._defaults = next(iter(self._fixed))
        #: The times of the short round of all, for each work.
        self.swept: dict[str, list[dict[str, Any]]] = {}
        tuning = [
            variant(BASE, f"{TUNED} on {work}", PERSEUS_TUNING_LOG=str(self._log(work)))
            for work in works
        ]
        contenders = [sweep.fixed(BASE, values) for values in self._fixed.values()]
        self._contest = Conductor([*tuning, *contenders], ranks, hosts, time_out=300)

    def __enter__(self) -> Sweep:
        self._contest.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._contest.__exit__()
        self._folder.cleanup()

    def run(self, name: str) -> tuple[sweep.Choice | None, dict[str, Times], dict[str, Times]]:
        """Returns the tuner's choice, and the times of it, the defaults and the fastest fixed ones.

        Also returns those of the last round: "chosen", "best" of the others, "defaults".
        """
        work, args = WORKS[name], self._args
        tuned = f"{TUNED} on {name}"
        # The tuner's steps, and some more after it has finished.
        self._measure(work, [tuned], turns=1, iterations=MOST_STEPS + 5)
        choice = sweep.read_choice(self._log(name), self._names)
        first = self._measure(work, list(self._fixed), turns=args.coarse_turns, iterations=3)
        self.swept[name] = [
            {**self._fixed[label], "median": times.median} for label, times in first.items()
        ]
        fastest = sorted(self._fixed, key=lambda label: first[label].median or float("inf"))
        chosen = [sweep.text(choice.values)] if choice else []
        finalists = dict.fromkeys((self._defaults, *chosen, *fastest[: args.finalists]))
        finalists = [tuned, *(label for label in finalists if label in self._fixed)]
        iterations = max(3, round(args.seconds * 1e6 / (first[fastest[0]].median or 1e6)))
        times = self._measure(work, finalists, turns=args.turns, iterations=iterations)
        if choice is None:
            return choice, times, {}
        others = [label for label in finalists if label not in (tuned, *chosen)]
        best = min(others, key=lambda label: times[label].median or float("inf"))
        settings = {
            "chosen": choice.values,
            "best": self._fixed[best],
            "defaults": self._fixed[self._defaults],
        }
        return choice, times, self._in_new_processes(work, settings, iterations)

    def _in_new_processes(
        self, work: Work, settings: Mapping[str, sweep.Values], iterations: int
    ) -> dict[str, Times]:
        """Returns times for each of these settings, over all processes that have them."""
        different = {sweep.text(values): values for values in settings.values()}
        copies = {
            label: [
                variant(sweep.fixed(BASE, values), f"{label}, process {i}") for i in range(COPIES)
            ]
            for label, values in different.items()
        }
        started = [copy for of_label in copies.values() for copy in of_label]
        with Conductor(started, *self._place, time_out=300) as contest:
            times = contest.measure(
                work.function, turns=self._args.turns, iterations=iterations, **work.options
            )
        return {
            which: pooled([times[copy.label] for copy in copies[sweep.text(values)]])
            for which, values in settings.items()
        }

    def _measure(
        self, work: Work, labels: list[str], *, turns: int, iterations: int
    ) -> dict[str, Times]:
        return self._contest.measure(
            work.function, turns=turns, iterations=iterations, only=labels, **work.options
        )

    def _log(self, work: str) -> Path:
        return Path(self._folder.name) / f"{work}.csv"


def pooled(parts: Sequence[Times]) -> Times:
    """Joins the iterations of contenders with the same settings."""
    reason = next((part.reason for part in parts if part.reason), None)
    times = [time for part in parts for time in part.microseconds]
    return replace(parts[0], microseconds=times, reason=reason)


def add_case(
    tuning: report.Report,
    case: Mapping[str, int | str],
    choice: sweep.Choice | None,
    times: Mapping[str, Times],
    last: Mapping[str, Times],
) -> None:
    """Adds rows of the finalists; the tuned one's row also has its result in the last round."""
    before = len(tuning.rows)
    tuning.add(case, times)
    tuning.print_case(case)
    tuned = tuning.rows[before]
    if choice is None:
        print(f"  the tuner has not ended within {MOST_STEPS} steps", flush=True)
        return
    print(f"  chosen in {choice.steps} steps: {sweep.text(choice.values)}", flush=True)
    medians = {which: of.median for which, of in last.items()}
    if None in medians.values():
        print(f"  the last round failed: {pooled(list(last.values())).reason}", flush=True)
        return
    chosen, best, defaults = (medians[which] or 0.0 for which in ("chosen", "best", "defaults"))
    tuned |= {
        "values": choice.values,
        "steps": choice.steps,
        "trials": choice.trials,
        "chosen": chosen,
        "to_best": chosen / best,
        "to_defaults": chosen / defaults,
    }
    texts = [f"{which} {report.time_text(median)}" for which, median in medians.items()]
    print(f"  in new processes: {', '.join(texts)}", flush=True)


@contextmanager
def hosts_of_lab(args: argparse.Namespace, count: int) -> Iterator[list[Host]]:
    with open_lab(count, args.link, args.flow) as lab:
        yield [Host(lab.address(host), "eth0", tuple(lab.at(host))) for host in range(count)]


def print_summary(rows: Sequence[Mapping[str, Any]]) -> None:
    titles = ("chosen in", "tuned", "best fixed", "tuned/best", "tuned/defaults")
    print(f"{'':40}" + "".join(f"{title:>15}" for title in titles))
    for row in rows:
        if "to_best" not in row:
            continue
        best = report.time_text(row["chosen"] / row["to_best"])
        print(
            f"{place_text(row):40}{row['steps']:>9} steps{report.time_text(row['chosen']):>15}"
            f"{best:>15}{row['to_best']:>15.3f}{row['to_defaults']:>15.3f}"
        )


def place_text(row: Mapping[str, Any]) -> str:
    hosts = f" on {row['hosts']} hosts" if row["hosts"] > 1 else ""
    return f"{row['work']}, {row['ranks']} ranks{hosts}"


def draw(content: Mapping[str, Any], file: Path) -> None:
    """Draws, for each work, the time with the settings that were chosen as a part of the time with
    the defaults, and the time with the fastest fixed ones."""
    cases = charts.measured(content["rows"], "to_best")
    charts.shares(
        [
            charts.Share(
                place_text({**row, "work": charts.case_text("work", row["work"])}),
                row["to_defaults"],
                row["to_defaults"] / row["to_best"],
            )
            for row in cases
        ],
        file,
        charts.Words(
            "What the tuner chooses",
            "time of all gradients at once, or of an allreduce, as a part of the time with the "
            "defaults",
        ),
        share="chosen by the tuner",
        mark="fastest fixed choice of a sweep",
        whole="defaults",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--works", nargs="*", action=Different, choices=WORKS, default=IN_A_HOST)
    parser.add_argument(
        "--ranks",
        type=at_least(2),
        nargs="+",
        action=Different,
        default=[2, 4],
        help="on this host",
    )
    parser.add_argument(
        "--works-over-hosts", nargs="*", action=Different, choices=WORKS, default=OVER_HOSTS
    )
    parser.add_argument("--hosts", type=at_least(2), nargs="+", action=Different, default=[2])
    parser.add_argument("--link", type=at_least(1), default=1000, help="Mbit/s")
    parser.add_argument("--flow", type=at_least(1), default=250, help="Mbit/s")
    parser.add_argument(
        "--finalists", type=at_least(1), default=4, help="fixed choices to measure again"
    )
    report.add_arguments(parser)
    args = parser.parse_args()
    if not args.works and not args.works_over_hosts:
        parser.error("--works and --works-over-hosts leave nothing to measure")
    if args.works_over_hosts and (reason := why_not()):
        if not args.works:
            sys.exit(f"no hosts: {reason}")
        print(f"no hosts: {reason}")
        args.works_over_hosts = []
    # Contenders are stopped during others' turns, and time jumps when they continue.
    os.environ.setdefault("PERSEUS_START_TIMEOUT", "3600")
    args.coarse_turns, args.turns, args.seconds = (1, 2, 0.1) if args.quick else (2, 9, 0.8)
    swept: list[dict[str, Any]] = []
    tuning = report.Report("tuning", file=args.json, also={"swept": swept})

    def run(place: Mapping[str, int | str], hosts: Sequence[Host], works: Sequence[str]) -> None:
        with Sweep(args, int(place["ranks"]), hosts, works) as contenders:
            for name in progress(works, f"tuning, {place['ranks']} ranks"):
                choice, times, last = contenders.run(name)
                add_case(tuning, {"work": WORKS[name].text, **place}, choice, times, last)
                swept.append({"work": name, **place, "fixed": contenders.swept[name]})
                tuning.save()

    print("median, p10 .. p90, ratio to the tuned", flush=True)
    for ranks in args.ranks if args.works else ():
        run({"ranks": ranks, "hosts": 1}, [], args.works)
    for count in args.hosts if args.works_over_hosts else ():
        with hosts_of_lab(args, count) as hosts:
            run({"ranks": count, "hosts": count}, hosts, args.works_over_hosts)
    print_summary(tuning.rows)
    tuning.save(finished=True)
    if args.plot:
        draw(tuning.content(), args.plot)


if __name__ == "__main__":
    with ending.by_exception():
        main()
