"""How perseusrun starts ranks: one agent a host, and a rendezvous where ranks swap addresses."""

from __future__ import annotations

import itertools

from pictures.canvas import Canvas

FILE = "launching.svg"
RANKS_PER_HOST = 2
#: The left edge of each host that ranks run on.
HOSTS = ((330, "host1"), (616, "host2"))
HOST_WIDTH = 264
STEPS = (
    "perseusrun reaches each host, over ssh where it is not this one, and starts one agent there.",
    "Each agent starts its host's ranks, carries their output back, and ends what they started.",
    "Every rank calls init, proves that it knows the job's secret, and gives its addresses to the "
    "rendezvous.",
    "Ranks connect to each other. From then on the launcher and the agents carry no data.",
)


def draw() -> str:
    canvas = Canvas(486, "perseusrun starts an agent on each host, and the agents start the ranks")
    canvas.heading("What perseusrun starts", "perseusrun -np 4 -H host1:2,host2:2 python train.py")
    _launcher(canvas)
    for host, (left, name) in enumerate(HOSTS):
        _host(canvas, left, name, host)
    _rendezvous_lines(canvas)
    _links(canvas)
    for number, words in enumerate(STEPS, start=1):
        y = 388 + 25 * (number - 1)
        canvas.number(32, y, number)
        canvas.text(52, y + 4.5, words)
    return canvas.document()


def _launcher(canvas: Canvas) -> None:
    canvas.box(20, 76, 224, 276, "room", radius=8)
    canvas.text(34, 98, "where you call it", colour="muted")
    canvas.box(36, 112, 192, 62, "pale amber")
    canvas.text(132, 138, "perseusrun", anchor="middle", bold=True)
    canvas.text(132, 157, "the job's secret, output", anchor="middle", size=11.5)
    canvas.box(36, 262, 192, 62, "pale green")
    canvas.text(132, 288, "rendezvous", anchor="middle", bold=True)
    canvas.text(132, 307, "the ranks' addresses", anchor="middle", size=11.5)
    canvas.path("M132 174 V260", dash="4 4")
    canvas.text(142, 222, "serves", colour="muted", size=11.5)


def _host(canvas: Canvas, left: float, name: str, host: int) -> None:
    canvas.box(left, 76, HOST_WIDTH, 276, "room", radius=8)
    canvas.text(left + 14, 98, name, colour="muted")
    canvas.box(left + 82, 112, 100, 62, "pale amber")
    canvas.text(left + 132, 148, "agent", anchor="middle", bold=True)
    for local in range(RANKS_PER_HOST):
        x = _rank(left, local)
        canvas.path(f"M{left + 132} 174 V192 H{x} V218", "accent", tip=True)
        canvas.box(x - 42, 220, 84, 44, "pale blue")
        rank = host * RANKS_PER_HOST + local
        canvas.text(x, 247, f"rank {rank}", anchor="middle", bold=True)
    canvas.number(left + 132, 192, 2)


def _rank(left: float, local: int) -> float:
    return left + 70 + 124 * local


def _rendezvous_lines(canvas: Canvas) -> None:
    (first, _), (second, _) = HOSTS
    canvas.path(f"M228 132 H{first + 80}", "accent", tip=True)
    canvas.number(287, 132, 1)
    canvas.text(287, 118, "ssh", anchor="middle", colour="muted", size=11.5)
    canvas.path(f"M228 124 H240 V62 H{second + 132} V110", "accent", tip=True)
    canvas.number(second - 10, 62, 1)
    canvas.text(second - 26, 56, "ssh", anchor="end", colour="muted", size=11.5)
    ends = [_rank(left, local) for left, _ in HOSTS for local in range(RANKS_PER_HOST)]
    canvas.path(f"M{ends[-1]} 266 V293", "axis", dash="4 4")
    for x in ends[:-1]:
        canvas.path(f"M{x} 266 V293", "axis", dash="4 4")
    canvas.path(f"M{ends[-1]} 293 H230", "axis", dash="4 4", tip=True)
    canvas.number(287, 293, 3)


def _links(canvas: Canvas) -> None:
    ends = [_rank(left, local) for left, _ in HOSTS for local in range(RANKS_PER_HOST)]
    for one, other in itertools.pairwise(ends):
        canvas.path(f"M{one + 44} 242 H{other - 44}", "blue", width=2, both=True)
    (first, _), (second, _) = HOSTS
    canvas.path(f"M{ends[0] - 20} 266 V330 H{ends[-1] + 20} V266", "blue", width=2, both=True)
    middle = (first + HOST_WIDTH + second) / 2
    canvas.number(middle, 330, 4)
    canvas.text(
        first + 168, 322, "shared memory, TCP or MPI", colour="muted", size=11.5, anchor="middle"
    )
