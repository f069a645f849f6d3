"""An allreduce over hosts with several ranks each: how many ranks' values each part holds, step by
step."""

from __future__ import annotations

from collections.abc import Callable

from pictures.canvas import Canvas

FILE = "hierarchical.svg"
HOSTS, RANKS = 2, 4  # ranks of each host; each rank's buffer has as many parts

#: By host, rank and part: how many ranks' values are summed there; 0 is what no longer matters.
State = list[list[list[int]]]

CELL, CELL_HEIGHT = 35, 19
STEPS = (
    ("reduce-scatter", "inside each host"),
    ("allreduce", "between hosts, part by part"),
    ("allgather", "inside each host"),
)


def begin() -> State:
    return [[[1] * RANKS for _ in range(RANKS)] for _ in range(HOSTS)]


def reduce_scatter(state: State) -> State:
    """Rank i of each host gets the sum of its host's part i."""
    return [
        [
            [sum(other[part] for other in host) if part == rank else 0 for part in range(RANKS)]
            for rank in range(RANKS)
        ]
        for host in state
    ]


def allreduce_between(state: State) -> State:
    """Ranks i of all hosts sum the parts that they hold."""
    return [
        [
            [sum(host[rank][part] for host in state) for part in range(RANKS)]
            for rank in range(RANKS)
        ]
        for _ in state
    ]


def allgather(state: State) -> State:
    """Each rank gets all parts of its host's ranks."""
    return [
        [[max(other[part] for other in host) for part in range(RANKS)] for _ in host]
        for host in state
    ]


def states() -> list[State]:
    found = [begin()]
    moves: tuple[Callable[[State], State], ...] = (reduce_scatter, allreduce_between, allgather)
    for move in moves:
        found.append(move(found[-1]))
    return found


def draw() -> str:
    canvas = Canvas(394, "A hierarchical allreduce over two hosts of four ranks, in three steps")
    canvas.heading(
        "Hierarchical allreduce",
        f"{HOSTS} hosts of {RANKS} ranks; a number says how many ranks' values are summed in that "
        "part",
    )
    width, gap = RANKS * CELL + 16, 78
    for at, state in enumerate(states()):
        left = 20 + at * (width + gap)
        for host in range(HOSTS):
            top = 104 + 138 * host
            _host(canvas, left, top, host, state[host], heads=at == 0)
        if at < len(STEPS):
            _between(canvas, left + width, gap, at)
    canvas.number(32, 374, 2)
    canvas.text(52, 378, f"Each rank sends only its part to other hosts: 1/{RANKS} of the buffer.")
    return canvas.document()


def _host(
    canvas: Canvas, left: float, top: float, host: int, ranks: list[list[int]], heads: bool
) -> None:
    height = RANKS * CELL_HEIGHT + 34
    canvas.box(left, top, RANKS * CELL + 16, height, "room", radius=6)
    first = host * RANKS
    for rank, parts in enumerate(ranks):
        x = left + 8 + rank * CELL
        canvas.text(
            x + CELL / 2, top + 18, f"r{first + rank}", anchor="middle", size=11, colour="muted"
        )
        for part, count in enumerate(parts):
            y = top + 26 + part * CELL_HEIGHT
            fill = {0: "room", 1: "pale grey", RANKS: "pale blue"}.get(count, "pale green")
            canvas.box(x + 1, y, CELL - 2, CELL_HEIGHT - 2, fill, radius=2, edge=0.7)
            if count:
                canvas.text(x + CELL / 2, y + 13, str(count), anchor="middle", size=11)
    if heads:
        canvas.text(left + 4, top - 8, f"host {host + 1}", bold=True)


def _between(canvas: Canvas, left: float, gap: float, step: int) -> None:
    name, where = STEPS[step]
    middle = left + gap / 2
    canvas.number(middle, 142, step + 1)
    canvas.text(middle, 76, name, anchor="middle", bold=True, size=11.5)
    canvas.text(middle, 91, where, anchor="middle", colour="muted", size=11)
    for top in (166, 304):
        canvas.path(f"M{left + 8} {top} H{left + gap - 8}", "accent", width=1.6, tip=True)
    if step == 1:
        canvas.path(f"M{middle} 174 V296", "accent", width=1.6, both=True)
