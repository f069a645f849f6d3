"""The bubbles of pipelines beside the formulas, and activations over links that are hidden.

python benchmarks/pipeline.py [--only bubbles links] [--ranks 4] [--microbatches 8] [--forward 50]
                              [--link 1000] [--kib 1024] [--link-microbatches 32] [--rounds 9]
                              [--quick] [--json FILE] [--timeline FILE]

Stages compute as on an accelerator: they sleep, so the number of this machine's processors does not
matter. On a micro-batch, forward takes --forward milliseconds, and each of the two parts of
backward as long. On a machine that does other work, too, start it by `chrt -f 10`: otherwise ranks
that wake up wait for a processor.

bubbles  All schedules in turns on one host. The interleaved one has two stages a rank, each half as
         long. --timeline writes the actions of a usual step of each.
links    1F1B over hosts that are network namespaces (contest/lab.py), with links of --link Mbit/s
         and activations, and gradients of them, of --kib KiB. Beside it, in turns, eager-1F1B, both
         with activations of 4 bytes, and a codec. What large ones add to a step is exposed; the
         rest of their time on a link is hidden. The limit is the schedule played with messages that
         take as long as the link needs for them: the first forward's and the last backward's way
         over all borders cannot be hidden, so there are more micro-batches here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contest import ending, report
from contest.arguments import Different, at_least, positive
from contest.conductor import Times
from contest.lab import Lab, open_lab, why_not
from contest.ranks import run

#: The first argument of this program as a rank over hosts; the second one has take_turns's.
AS_RANK = "--as-rank"
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "interleaved", "zero-bubble")
#: By the name of a row: the schedule, the codec, and whether the activations are large.
LINKS: Mapping[str, tuple[str, str | None, bool]] = {
    "1f1b, 4 bytes": ("1f1b", None, False),
    "1f1b, float32": ("1f1b", None, True),
    "eager-1f1b, 4 bytes": ("eager-1f1b", None, False),
    "eager-1f1b, float32": ("eager-1f1b", None, True),
    "1f1b, int8": ("1f1b", "int8", True),
}


def make_stage(seconds: float) -> Any:
    """Returns a stage whose forward, and each part of whose backward, sleeps for so long."""
    import torch

    class Input(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            time.sleep(seconds)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(seconds)
            return gradient

    class Weight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
            return weight.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(seconds)
            return gradient

    class Stage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Input.apply(x) + Weight.apply(self.weight)

    return Stage()


class Contender:
    """A pipeline of emulated stages, on one rank, and what its steps have taken."""

    def __init__(
        self,
        ranks: int,
        schedule: str,
        microbatches: int,
        forward_ms: float,
        elements: int,
        codec: str | None,
    ) -> None:
        import torch

        from perseus.pipeline import Pipeline

        each = 2 if schedule == "interleaved" else 1
        self.pipeline = Pipeline(
            [lambda: make_stage(forward_ms / each / 1e3)] * (ranks * each),
            loss_fn=lambda output, target: output.mean(),
            schedule=schedule,
            microbatches=microbatches,
            codec=codec,
        )
        # So that the first stage, too, takes time for its input's gradient.
        x = torch.rand(microbatches, elements, requires_grad=True)
        self.batch = x, torch.zeros(microbatches)
        self.seconds: list[float] = []
        self.bubbles: list[float] = []
        self.expected = 0.0
        self.spans: list[Any] = []

    def step(self, counts: bool) -> None:
        self.pipeline.step(*self.batch)
        spans = self.pipeline.spans
        reported = self.pipeline.report()
        if counts:
            self.seconds.append(reported.seconds)
            self.bubbles.append(reported.bubble)
            self.expected = reported.expected_bubble
            self.spans.append(
                [
                    [action.kind.value, action.stage, action.microbatch, begin, end]
                    for action, begin, end in spans
                ]
            )

    def found(self) -> dict[str, Any]:
        usual = self.seconds.index(statistics.median_low(self.seconds))  # the same on all ranks
        return {
            "seconds": self.seconds,
            "bubbles": self.bubbles,
            "formula": self.expected,
            "spans": self.spans[usual],
        }


def take_turns(
    ranks: int,
    microbatches: int,
    forward_ms: float,
    rounds: int,
    contenders: Sequence[tuple[str, str, int, str | None]],
) -> dict[str, dict[str, Any]]:
    """Runs on each rank. contenders: name, schedule, elements of an activation, and codec."""
    import torch

    import perseus.torch.horovod as hvd

    hvd.init()
    torch.set_num_threads(1)
    made = {
        name: Contender(ranks, schedule, microbatches, forward_ms, elements, codec)
        for name, schedule, elements, codec in contenders
    }
    for number in range(rounds + 1):  # the first one only warms up
        for contender in made.values():
            contender.step(counts=number > 0)
    hvd.shutdown()
    return {name: contender.found() for name, contender in made.items()}


def played(schedule: str, args: argparse.Namespace, message_ms: float) -> float:
    """Returns the milliseconds of a step in which messages take so long, and else nothing."""
    from perseus.pipeline.schedules import SCHEDULES as KNOWN
    from perseus.pipeline.schedules import Kind
    from perseus.pipeline.simulation import play

    return play(
        KNOWN[schedule].order(args.ranks, args.ranks, args.link_microbatches),
        lambda action: args.forward * (2 if action.kind is Kind.BACKWARD else 1),
        message_ms,
    ).length


def times(seconds: Iterable[float]) -> Times:
    return Times([1e6 * one for one in seconds])


def bubbles(args: argparse.Namespace, reported: report.Report) -> None:
    contenders = [(name, name, 1, None) for name in SCHEDULES]
    ranks = run(
        take_turns,
        args=(args.ranks, args.microbatches, args.forward, args.rounds, contenders),
        num_proc=args.ranks,
    )
    case = {
        "work": f"step of {args.ranks} ranks, {args.microbatches} micro-batches, "
        f"forward {args.forward:g} ms",
        "ranks": args.ranks,
    }
    reported.add(case, {name: times(ranks[0][name]["seconds"]) for name in SCHEDULES})
    reported.print_case(case)
    print("  bubble, median (least to most), beside the schedule's formula")
    for name in SCHEDULES:
        found = ranks[0][name]
        measured = statistics.median(found["bubbles"])
        ratio = measured / found["formula"]
        print(
            f"  {name:24} {measured:6.1%}  ({min(found['bubbles']):.1%} to "
            f"{max(found['bubbles']):.1%})  formula {found['formula']:6.1%}  ratio {ratio:.3f}",
            flush=True,
        )
        reported.also["bubbles"].append(
            {"schedule": name, "measured": found["bubbles"], "formula": found["formula"]}
        )
    reported.save()
    if args.timeline:
        write_timeline(args, ranks)


def write_timeline(args: argparse.Namespace, ranks: Sequence[dict[str, dict[str, Any]]]) -> None:
    """Writes when each rank did what in a step of each schedule, in ms from its first action."""
    recorded = {}
    for name in SCHEDULES:
        start = min(span[3] for rank in ranks for span in rank[name]["spans"])

        def since(moment: float, start: float = start) -> float:
            return round(1e3 * (moment - start), 2)

        recorded[name] = [
            [[*action, since(begin), since(end)] for *action, begin, end in rank[name]["spans"]]
            for rank in ranks
        ]
    content = {"microbatches": args.microbatches, "forward_ms": args.forward, "steps": recorded}
    args.timeline.write_text(json.dumps(content) + "\n")


def links(args: argparse.Namespace, reported: report.Report) -> None:
    if why := why_not():
        print(f"links is left out: {why}")
        return
    elements = args.kib * 1024 // 4
    contenders = [
        (name, schedule, elements if is_large else 1, codec)
        for name, (schedule, codec, is_large) in LINKS.items()
    ]
    with open_lab(args.ranks, args.link) as lab:
        found = over_hosts(
            lab, args.ranks, args.link_microbatches, args.forward, args.rounds, contenders
        )
        wire_ms = args.kib * 1024 * 8 / ((lab.payload_mbit() or 0) * 1e3)
    case = {
        "work": f"step over {args.ranks} hosts, {args.link_microbatches} micro-batches, forward "
        f"{args.forward:g} ms, activations of {args.kib} KiB",
        "ranks": args.ranks,
        "link_mbit": args.link,
    }
    reported.add(case, {name: times(found[name]["seconds"]) for name in LINKS})
    reported.print_case(case)
    traffic = 2 * args.link_microbatches * wire_ms
    print(
        f"  float32 takes {wire_ms:.1f} ms of a link, {2 * args.link_microbatches} times a step "
        f"between two hosts: {traffic:.0f} ms"
    )
    for schedule in ("1f1b", "eager-1f1b"):
        small, large = (
            1e3 * statistics.median(found[f"{schedule}, {what}"]["seconds"])
            for what in ("4 bytes", "float32")
        )
        least = played(schedule, args, wire_ms) - played(schedule, args, 0.0)
        print(
            f"  {schedule}: they add {large - small:.0f} ms to the step, so "
            f"{1 - (large - small) / traffic:.0%} is hidden; played, they add {least:.0f} ms "
            f"({1 - least / traffic:.0%})",
            flush=True,
        )
        reported.also["links"].append(
            {
                "schedule": schedule,
                "traffic_ms": traffic,
                "added_ms": large - small,
                "played_ms": least,
            }
        )
    reported.save()


def over_hosts(lab: Lab, *arguments: Any) -> dict[str, dict[str, Any]]:
    """Returns what rank 0 has found; there is a rank on each host of the lab."""
    hosts = ",".join(f"{lab.address(host)}:1" for host in range(lab.hosts))
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(lab.hosts), "-H", hosts]
    rank = [sys.executable, __file__, AS_RANK, json.dumps(arguments)]
    done = subprocess.run(
        lab.at(0, *launcher, *rank),
        env=os.environ | lab.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = re.search(r"^\[0\]<stdout>:(\{.*\})$", done.stdout, re.M)
    assert found, done.stdout
    content: dict[str, dict[str, Any]] = json.loads(found[1])
    return content


def be_rank(arguments: str) -> None:
    found = take_turns(*json.loads(arguments))
    if os.environ["PERSEUS_RANK"] == "0":
        print(json.dumps(found), flush=True)


PARTS: Mapping[str, Callable[[argparse.Namespace, report.Report], None]] = {
    "bubbles": bubbles,
    "links": links,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", action=Different, choices=PARTS, default=list(PARTS))
    parser.add_argument("--ranks", type=at_least(2), default=4)
    parser.add_argument("--microbatches", type=at_least(2), default=8)
    parser.add_argument("--forward", type=positive, default=50.0, help="ms")
    parser.add_argument("--link", type=at_least(1), default=1000, help="Mbit/s")
    parser.add_argument("--kib", type=at_least(1), default=1024, help="of an activation")
    parser.add_argument("--link-microbatches", type=at_least(2), default=32)
    parser.add_argument("--rounds", type=at_least(1))
    parser.add_argument("--timeline", type=Path)
    report.add_arguments(parser, plot=False)
    args = parser.parse_args()
    if args.link_microbatches < args.ranks:
        parser.error("argument --link-microbatches: at least as many as --ranks")
    if args.microbatches % args.ranks:
        parser.error("argument --microbatches: must be a multiple of --ranks, for interleaved")
    if args.timeline and "bubbles" not in args.only:
        parser.error("argument --timeline: bubbles are recorded, and --only leaves them out")
    args.rounds = args.rounds or (2 if args.quick else 9)
    reported = report.Report("pipeline", file=args.json, also={"bubbles": [], "links": []})
    for part in args.only:
        PARTS[part](args, reported)
    reported.save(finished=True)


if __name__ == "__main__":
    with ending.by_exception():
        if sys.argv[1:2] == [AS_RANK]:
            be_rank(sys.argv[2])
        else:
            main()
