"""make_performance_page.py [--check | --allow-dirty]: writes the table of docs/performance.md.

The figures come from benchmarks/results/*.json. A row without a figure says so, and a line below
the table names the files that are missing. Results of a tree with uncommitted changes are refused,
because nobody could repeat them. --allow-dirty accepts them, and the page says so.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from generated_page import ROOT, parse_arguments, table, update

DIRTY = "-dirty"
PAGE = ROOT / "docs/performance.md"
RESULTS = ROOT / "benchmarks/results"

LARGE = 64 << 20
HOROVOD = ("horovod mpi", "horovod gloo")
ALL_PEERS = (*HOROVOD, "torch gloo, 25 MB buckets")
HOSTS_PEERS = (*HOROVOD, "torch gloo", "open mpi C", "mpich C")
OPTIMIZER = "perseus, as its optimizer"
SHAPE: dict[str, Any] = {"hosts": 4, "ranks": 4}
EIGHTH = "1000 Mbit/s, 125 a connection"
CAPPED = "1000 Mbit/s, 250 a connection"
OPEN = "1000 Mbit/s, no cap on connections"

Found = Mapping[str, Any]


class Results:
    """The rows of all programs' results."""

    def __init__(self) -> None:
        self.files = {
            file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))
        }
        #: Programs whose rows have been read, and programs that have none.
        self.used: set[str] = set()
        self.missing: set[str] = set()

    def rows(self, program: str, section: str = "rows") -> Sequence[Found]:
        """Returns a program's rows; KeyError if there are none."""
        if program not in self.files:
            self.missing.add(program)
        found: Sequence[Found] = self.files[program][section]
        self.used.add(program)
        return found

    def dirty(self) -> list[str]:
        """Returns programs in use that were measured with uncommitted changes."""
        return [name for name in sorted(self.used) if _commit(self.files[name]).endswith(DIRTY)]

    def origins(self) -> str:
        """Returns lines with each program's commit and date, and the programs without results."""
        measured = f"Measured: {'; '.join(map(self._origin, sorted(self.used)))}."
        if not self.missing:
            return measured
        return f"{measured}\nNot measured yet: {', '.join(sorted(self.missing))}."

    def _origin(self, program: str) -> str:
        content = self.files[program]
        commit = _commit(content)
        changed = " with changes that were not committed" if commit.endswith(DIRTY) else ""
        cut = "" if content.get("finished", True) else ", cut short"
        return f"{program} at {commit.removesuffix(DIRTY)}{changed}, {content['date'][:10]}{cut}"

    def find(
        self, program: str, contender: str | None, section: str = "rows", **case: Any
    ) -> Found:
        """Returns the one row; KeyError if there is none, or none with a figure.

        Raises ValueError if there are several: the result must not depend on their order.
        """
        if contender is not None:
            case["contender"] = contender
        found = [
            row
            for row in self.rows(program, section)
            if all(row.get(key) == value for key, value in case.items())
            and row.get("median", 0) is not None
        ]
        if len(found) > 1:
            raise ValueError(f"{program}.json has {len(found)} rows with {case} in {section}")
        if not found:
            raise KeyError(f"{program}.json has no row with {case} in {section}")
        return found[0]

    def best(self, program: str, contenders: Sequence[str], **case: Any) -> Found:
        found = []
        for contender in contenders:
            try:
                found.append(self.find(program, contender, **case))
            except KeyError:
                continue
        if not found:
            raise KeyError(f"{program}.json has none of {contenders} with {case}")
        return min(found, key=lambda row: row["median"])


def _commit(content: Found) -> str:
    commit: str = content["machine"]["versions"]["perseus"]
    return commit


@dataclass
class Line:
    """A line of the table.

    wanted: None if no aim is set. figure: gives the figure measured, and how it came about.
    """

    work: str
    against: str
    wanted: float | None
    at_least: bool
    figure: Callable[[Results], tuple[float, str]]

    def row(self, results: Results) -> str:
        sign = "≥" if self.at_least else "≤"
        aim = "" if self.wanted is None else f" {sign} {self.wanted:g}"
        try:
            value, how = self.figure(results)
        except KeyError:
            return f"| {self.work} | {self.against} | not measured |{aim} | |"
        shown = f"{value:.3g}" if self._reached(value) else f"**{value:.3g}**"
        return f"| {self.work} | {self.against} | {shown} |{aim} | {how} |"

    def _reached(self, value: float) -> bool:
        if self.wanted is None:
            return True
        return value >= self.wanted if self.at_least else value <= self.wanted


def time_text(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1000:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g} s"


def against(
    work: str,
    peers: Sequence[str],
    wanted: float | None,
    program: str,
    label: str,
    ours: str = "perseus",
    /,
    **case: Any,
) -> Line:
    """Returns how many times faster Perseus is than the fastest of these peers."""

    def figure(results: Results) -> tuple[float, str]:
        own = results.find(program, ours, **case)
        theirs = results.best(program, peers, **case)
        how = f"{time_text(own['median'])}, {time_text(theirs['median'])}"
        if len(peers) > 1:
            how += f" ({theirs['contender']})"
        return theirs["median"] / own["median"], how

    return Line(work, label, wanted, True, figure)


def within(
    work: str, limit: str, wanted: float | None, program: str, label: str, /, **case: Any
) -> Line:
    """Returns the time as a multiple of a limit's."""

    def figure(results: Results) -> tuple[float, str]:
        ours = results.find(program, "perseus", **case)["median"]
        least = results.find(program, limit, **case)["median"]
        return ours / least, f"{time_text(ours)}, {time_text(least)}"

    return Line(work, label, wanted, False, figure)


def share_of_link(work: str, wanted: float, caps: str) -> Line:
    def figure(results: Results) -> tuple[float, str]:
        row = results.find("hosts", "perseus", work="allreduce of 64 MiB", caps=caps, **SHAPE)
        return row["mbit"] / row[
            "limit_mbit"
        ], f"{row['mbit']:.0f} of {row['limit_mbit']:.0f} Mbit/s"

    return Line(work, "the limit of the link", wanted, True, figure)


def other_way(
    work: str, than: str, wanted: float, caps: str, ours: tuple[str, str], theirs: tuple[str, str]
) -> Line:
    """Compares Perseus with itself over hosts; gives the work and contender of each."""

    def figure(results: Results) -> tuple[float, str]:
        first, second = (
            results.find("hosts", contender, work=text, caps=caps, **SHAPE)["median"]
            for text, contender in (ours, theirs)
        )
        return second / first, f"{time_text(first)}, {time_text(second)}"

    return Line(work, than, wanted, True, figure)


def exposed(model: str, label: str) -> Iterator[Line]:
    """Returns the time that a step takes beyond computing."""
    case: dict[str, Any] = {"work": f"step of {model}", "caps": CAPPED, **SHAPE}

    def times_less(contender: str) -> Callable[[Results], tuple[float, str]]:
        def figure(results: Results) -> tuple[float, str]:
            first = results.find("hosts", "perseus", **case)["exposed"]
            second = results.find("hosts", contender, **case)["exposed"]
            return second / first, f"{time_text(first)}, {time_text(second)}"

        return figure

    def of_bound(results: Results) -> tuple[float, str]:
        row = results.find("hosts", "perseus", **case)
        return row["exposed"] / row[
            "bound"
        ], f"{time_text(row['exposed'])}, {time_text(row['bound'])}"

    yield Line(
        label, "priority and forward overlap off", 2.2, True, times_less("perseus, both off")
    )
    yield Line("", "4 MB parts, first come", 1.3, True, times_less("perseus, 4 MB first-come"))
    yield Line("", "the lower bound", 1.1, False, of_bound)


def messages(case: Mapping[str, Any]) -> Line:
    """Returns the line of an agreement's messages, as a multiple of recursive doubling's."""

    def figure(results: Results) -> tuple[float, str]:
        row = results.find("negotiation", "perseus", **case)
        most = max(row["messages_sent"][1], row["messages_received"][1])
        return most / math.log2(case["ranks"]), f"{most}, {math.log2(case['ranks']):.0f}"

    work = f"the most messages of a rank for it, {case['ranks']:,} ranks"
    return Line(work, "log2 of the ranks", None, False, figure)


def control_messages() -> Iterator[Line]:
    """Gives the lines of the messages that real ranks on one host send to agree on known names."""

    def figure(results: Results, ranks: int) -> tuple[float, str]:
        row = results.find("negotiation", None, "steps", ranks=ranks, gradients="over 30 ms")
        how = f"in {row['agreements']:.3g} agreements, {row['merges']:.3g} merged units"
        return row["agreement_messages_sent"], how

    for ranks in (2, 4):
        work = f"control messages a rank sends in a step of ResNet-50, {ranks} ranks"
        yield Line(work, "(a count)", None, False, partial(figure, ranks=ranks))


def lines(results: Results) -> Iterator[Line]:
    small = {"bytes": 4, "ranks": 2}
    yield against(
        "`hvd.allreduce` of 4 bytes, 2 ranks", HOROVOD, 30, "latency", "Horovod as it is", **small
    )
    yield against(
        "", ["horovod gloo, cycle 0"], 8, "latency", "Horovod over Gloo, cycle time 0", **small
    )
    yield against("", ["torch gloo"], 4, "latency", "PyTorch's Gloo", **small)
    yield against(
        "", ["horovod mpi, polling"], 1, "latency", "Horovod over MPI, polling a core", **small
    )
    for ranks, limit, mpi, gloo, torch in ((2, 1.15, 2.4, 6, 4.5), (4, 1.4, 3, 9, 4.5)):
        case = {"work": "allreduce", "bytes": LARGE, "ranks": ranks}
        yield within(
            f"allreduce of 64 MiB, {ranks} ranks",
            "copy limit",
            limit,
            "bandwidth",
            "a copy of each buffer by memcpy",
            **case,
        )
        label = "reading and writing each in place"
        yield within("", "memory limit", None, "bandwidth", label, **case)
        for peer, wanted, label in (
            ("horovod mpi", mpi, "Horovod over MPI"),
            ("horovod gloo", gloo, "Horovod over Gloo"),
            ("torch gloo", torch, "PyTorch's Gloo"),
        ):
            yield against("", [peer], wanted, "bandwidth", label, **case)
    for ranks, wanted in ((2, 4), (4, 5)):
        case = {"work": "all 161 gradients of resnet50 at once", "ranks": ranks}
        text = f"ResNet-50's 161 gradients, {ranks} ranks"
        yield against(
            text,
            ALL_PEERS,
            wanted,
            "step",
            "the fastest peer",
            OPTIMIZER,
            section="at_once",
            **case,
        )
    case = {"work": "all 4000 gradients of ctr at once", "ranks": 4}
    yield against(
        "4,000 small gradients, 4 ranks",
        ["horovod mpi"],
        5,
        "step",
        "Horovod over MPI",
        OPTIMIZER,
        section="at_once",
        **case,
    )
    large = {"work": "allreduce of 64 MiB", **SHAPE}
    gloos = ("horovod gloo", "torch gloo")
    yield share_of_link("allreduce of 64 MiB, 4 hosts, 250 Mbit/s a connection", 0.92, CAPPED)
    yield against("", gloos, 3.8, "hosts", "Horovod and PyTorch over Gloo", caps=CAPPED, **large)
    yield share_of_link("allreduce of 64 MiB, 4 hosts, no cap on connections", 0.95, OPEN)
    yield against("", HOSTS_PEERS, 1, "hosts", "the fastest peer", caps=OPEN, **large)
    yield other_way(
        "allreduce of 64 MiB, one connection of 8 slowed to a tenth",
        "none slowed",
        0.85,
        EIGHTH,
        ("allreduce of 64 MiB, one of 8 streams slowed to a tenth", "perseus"),
        ("allreduce of 64 MiB, 8 streams", "perseus"),
    )
    coded = "allreduce of 64 MiB, codecs"
    yield other_way(
        "allreduce of 64 MiB, fp16 on the wire, 250 Mbit/s a connection",
        "float32",
        1.9,
        CAPPED,
        (coded, "perseus, fp16"),
        (coded, "perseus"),
    )
    yield from exposed("vgg16", "exposed communication, VGG-16, 4 hosts")
    yield from exposed("bert-large", "exposed communication, BERT-large, 4 hosts")
    for ranks, wanted in ((1024, 15), (16384, 100)):
        case = {"names": "ResNet-50", "state": "steady state", "ranks": ranks}
        yield against(
            f"an agreement on 161 names, {ranks:,} simulated ranks",
            ["coordinator"],
            wanted,
            "negotiation",
            "a coordinator, no cache",
            **case,
        )
        label = "Horovod's cache, over MPI"
        yield against("", ["cached-mpi"], None, "negotiation", label, **case)
        yield messages(case)
    yield from control_messages()
    yield from tuned(results)


def tuned(results: Results) -> Iterator[Line]:
    """Gives a line for each work in the file. Without it, the page says so below the table."""
    try:
        rows = results.rows("tuning")
    except KeyError:
        return
    for row in rows:
        if "to_best" not in row:
            continue
        how = f"{row['steps']} steps to tune"
        where = f"{row['ranks']} hosts" if row["hosts"] > 1 else f"{row['ranks']} ranks"
        text = f"tuned settings, {row['work']}, {where}"
        yield Line(text, "the best of a sweep", 1.05, False, _given(row["to_best"], how))


def _given(ratio: float, how: str) -> Callable[[Results], tuple[float, str]]:
    return lambda _: (ratio, how)


def main() -> None:
    args = parse_arguments(__doc__, allow_dirty="accept results of a tree with changes")
    results = Results()
    rows = [line.row(results) for line in lines(results)]
    columns = "| work | against | ratio | aim | Perseus, the other |"
    if (dirty := results.dirty()) and not (args.check or args.allow_dirty):
        files = ", ".join(f"benchmarks/results/{name}.json" for name in dirty)
        sys.exit(
            f"{files}: of a tree with changes that its commit lacks, so nobody can repeat it; "
            "measure it anew, or see --allow-dirty"
        )
    origins = "\n".join(textwrap.fill(line, 100) for line in results.origins().splitlines())
    update(PAGE, {"figures": f"{table(columns, rows)}\n{origins}\n"}, check=args.check)


if __name__ == "__main__":
    main()
