"""A step of each schedule of pipelines, as benchmarks/pipeline.py --timeline has recorded it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pictures.canvas import Canvas
from pictures.theme import WIDTH

FILE = "pipeline.svg"
RECORD = Path(__file__).resolve().parents[2] / "docs/timelines/pipeline.json"
LEFT, RIGHT, TOP, ROW, BAR, GAP = 76, 24, 84, 21, 18, 38
SHOWN = {
    "gpipe": "all forwards, then all backwards",
    "1f1b": "forwards and backwards in turns, so that fewer activations are kept",
    "interleaved": "two stages of half the size on each rank",
    "zero-bubble": "gradients of parameters wait until a rank has nothing else to do",
}
#: By the kind of an action, for the first and the second stage of a rank.
FILLS = {
    "F": ("pale blue", "pale purple"),
    "B": ("pale amber", "pale red"),
    "I": ("pale amber",),
    "W": ("pale green",),
}
WORDS = {"F": "forward", "B": "backward", "I": "its input's part", "W": "its parameters' part"}
KEY_AT = (20, 106, 200, 340)


def draw() -> str:
    steps = json.loads(RECORD.read_text())["steps"]
    ranks = len(steps["1f1b"])
    end = max(span[4] for name in SHOWN for rank in steps[name] for span in rank)
    height = TOP + len(SHOWN) * (ranks * ROW + GAP) - 4
    canvas = Canvas(height, "A step of a pipeline by each schedule: which rank computes when")
    canvas.heading(
        "A step of a pipeline by each schedule",
        "Recorded on 4 ranks, whose stages take equal time. Numbers are micro-batches; the rest is "
        "bubble.",
    )
    _draw_key(canvas)
    top = float(TOP)
    for name, words in SHOWN.items():
        canvas.text(20, top + 10, name, bold=True)
        canvas.text(LEFT + 44, top + 10, words, colour="muted", size=11)
        length = max(span[4] for rank in steps[name] for span in rank)
        canvas.text(
            WIDTH - RIGHT, top + 10, f"{length:.0f} ms", colour="muted", anchor="end", size=11
        )
        for rank, spans in enumerate(steps[name]):
            _draw_rank(canvas, top + 18 + rank * ROW, rank, ranks, spans, end)
        top += ranks * ROW + GAP
    return canvas.document()


def _draw_key(canvas: Canvas) -> None:
    for at, (kind, words) in zip(KEY_AT, WORDS.items(), strict=True):
        canvas.box(at, 62, 14, 12, FILLS[kind][0], None, 2)
        canvas.text(at + 20, 72, words, size=11)
    canvas.box(500, 62, 14, 12, FILLS["F"][1], None, 2)
    canvas.box(516, 62, 14, 12, FILLS["B"][1], None, 2)
    canvas.text(536, 72, "of a rank's second stage", size=11)


def _draw_rank(
    canvas: Canvas, y: float, rank: int, ranks: int, spans: Sequence[Any], end: float
) -> None:
    scale = (WIDTH - LEFT - RIGHT) / end
    canvas.text(20, y + 13, f"rank {rank}", size=11)
    canvas.path(f"M{LEFT} {y + BAR:.1f} H{WIDTH - RIGHT}", "grid")
    for kind, stage, number, begin, stop in spans:
        fill = FILLS[kind][stage // ranks]
        x, width = LEFT + begin * scale, (stop - begin) * scale
        canvas.box(x, y, width - 0.6, BAR - 1, fill, None, 2)
        canvas.text(x + width / 2, y + 13, str(number + 1), anchor="middle", size=10)
