"""Gradients on the wire and the next forward pass: in Horovod's order, and by priority.

Both strips are computed from the numbers below. The link moves one shard at a time. In Horovod's
order, gradients move as they become ready, and the next forward pass waits for all of them. By
priority, the link takes the shard of the earliest layer that is ready, and each layer's forward
waits for its own gradient only. Neither strip counts the time of agreeing, nor Horovod's cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pictures.canvas import Canvas

FILE = "priority.svg"
#: Of layers 1, 2, ...: the gradient's megabytes. Layers compute for the same time.
MEGABYTES = (1.0, 2.5, 5.0, 8.0, 20.0)
FORWARD_MS, BACKWARD_MS = 2.0, 4.0
LINK_GBIT = 10.0
#: Of two hosts, each sends as many bytes as a gradient has.
SHARD_MEGABYTES = 0.5
COLOURS = ("pale red", "pale amber", "pale green", "pale purple", "pale blue")

LEFT, RIGHT, LANE = 100, 24, 30


@dataclass(frozen=True)
class Piece:
    """A layer on the accelerator or on the link, in milliseconds."""

    layer: int
    begin: float
    end: float


@dataclass(frozen=True)
class Step:
    backward: Sequence[Piece]
    link: Sequence[Piece]
    forward: Sequence[Piece]

    @property
    def end(self) -> float:
        return self.forward[-1].end


#: Chooses the next layer from those that are ready, in the order in which they became so.
Choice = Callable[[Sequence[int]], int]


def first_come(ready: Sequence[int]) -> int:
    return ready[0]


def earliest_layer(ready: Sequence[int]) -> int:
    return min(ready)


def step(choose: Choice, overlap: bool) -> Step:
    """Returns a backward pass, its gradients on the link, and the next forward pass.

    overlap: each layer's forward waits for its own gradient only.
    """
    layers = range(len(MEGABYTES))
    backward = [
        Piece(layer, at * BACKWARD_MS, (at + 1) * BACKWARD_MS)
        for at, layer in enumerate(reversed(layers))
    ]
    link = _moved(backward, choose)
    arrived = {layer: max(piece.end for piece in link if piece.layer == layer) for layer in layers}
    forward: list[Piece] = []
    free = backward[-1].end
    for layer in layers:
        begin = max(free, arrived[layer] if overlap else max(arrived.values()))
        free = begin + FORWARD_MS
        forward.append(Piece(layer, begin, free))
    return Step(backward, link, forward)


def _moved(backward: Sequence[Piece], choose: Choice) -> list[Piece]:
    """Returns what the link moves; shards of one layer that follow each other are one piece."""
    shard = SHARD_MEGABYTES * 8 / LINK_GBIT
    left = {piece.layer: round(MEGABYTES[piece.layer] / SHARD_MEGABYTES) for piece in backward}
    moved: list[Piece] = []
    now = 0.0
    while any(left.values()):
        ready = [one.layer for one in backward if one.end <= now + 1e-9 and left[one.layer]]
        if not ready:
            now = min(one.end for one in backward if left[one.layer])
            continue
        layer = choose(ready)
        if moved and moved[-1].layer == layer and abs(moved[-1].end - now) < 1e-9:
            moved[-1] = Piece(layer, moved[-1].begin, now + shard)
        else:
            moved.append(Piece(layer, now, now + shard))
        left[layer] -= 1
        now += shard
    return moved


def draw() -> str:
    horovod, perseus = step(first_come, overlap=False), step(earliest_layer, overlap=True)
    canvas = Canvas(402, "A training step in Horovod's order of gradients, and by priority")
    *all_but_last, last = (f"{size:g}" for size in MEGABYTES)
    canvas.heading(
        "The gradient needed first goes first",
        f"model: {len(MEGABYTES)} layers, gradients of {', '.join(all_but_last)} and {last} MB; "
        f"backward {BACKWARD_MS:g} ms, forward {FORWARD_MS:g} ms each; {LINK_GBIT:g} Gbit/s "
        "between 2 hosts",
    )
    scale = (900 - LEFT - RIGHT) / horovod.end

    def x(time: float) -> float:
        return LEFT + time * scale

    _strip(canvas, x, 84, "Horovod: in the order in which they become ready", horovod)
    _strip(canvas, x, 224, "Perseus: by priority, with overlap_forward=True", perseus)
    bottom = 350
    canvas.path(f"M{LEFT} {bottom} H{900 - RIGHT}", width=1)
    for tick in range(0, int(horovod.end) + 1, 5):
        canvas.path(f"M{x(tick):.1f} {bottom} v5", width=1)
        canvas.text(x(tick), bottom + 19, f"{tick} ms", anchor="middle", size=11)
    canvas.path(f"M{x(perseus.end):.1f} 76 V{bottom}", "accent", dash="4 4")
    canvas.path(f"M{x(perseus.end):.1f} 387 H{x(horovod.end):.1f}", "accent", both=True)
    canvas.text(
        x(perseus.end) - 8,
        391,
        f"the step ends {horovod.end - perseus.end:.1f} ms earlier",
        colour="accent",
        anchor="end",
    )
    return canvas.document()


def _strip(canvas: Canvas, x: Callable[[float], float], top: float, title: str, of: Step) -> None:
    canvas.text(20, top, title, bold=True)
    computing, moving = top + 32, top + 32 + LANE + 8
    canvas.text(LEFT - 12, computing + 20, "computes", anchor="end")
    canvas.text(LEFT - 12, moving + 20, "link", anchor="end")
    for number, pieces in enumerate((of.backward, of.forward)):
        _pieces(canvas, x, computing, pieces)
        words = ("backward", "next forward")[number]
        begin, end = pieces[0].begin, pieces[-1].end
        canvas.text((x(begin) + x(end)) / 2, top + 24, words, anchor="middle", colour="muted")
    idle = of.forward[0].begin - of.backward[-1].end
    if idle > FORWARD_MS:
        middle = (x(of.backward[-1].end) + x(of.forward[0].begin)) / 2
        canvas.text(middle, computing + 20, f"idle for {idle:.1f} ms", anchor="middle")
    _pieces(canvas, x, moving, of.link)


def _pieces(
    canvas: Canvas, x: Callable[[float], float], top: float, pieces: Sequence[Piece]
) -> None:
    for piece in pieces:
        left, right = x(piece.begin), x(piece.end)
        canvas.box(left, top, right - left, LANE, COLOURS[piece.layer], radius=2)
        if right - left > 13:
            number = str(piece.layer + 1)
            canvas.text((left + right) / 2, top + 20, number, anchor="middle", bold=True)
