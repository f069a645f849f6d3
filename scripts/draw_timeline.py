"""draw_timeline.py TIMELINE.json OUT.svg [FROM_MS TO_MS]: draws a part of a timeline.

For pages that cannot embed chrome://tracing. Rows are tensors and, below each, its streams. A
timeline of more than 40 rows has a row for each tensor, with its streams in it, in the order in
which these begin.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pictures.canvas import Canvas
from pictures.theme import WIDTH

LEFT = 150
RIGHT = 16
TOP = 14
#: Pixels from row to row, and the size of text; the second of each for timelines of many rows.
ROW, SIZE = (22, 15), (11, 10)
MANY_ROWS = 40
COLOURS = {
    "NEGOTIATE": "pale amber",
    "QUEUE": "pale grey",
    "SHARD": "pale blue",
    "PACK": "pale purple",
    "UNPACK": "pale purple",
}
OTHER = "pale green"  # the operation itself
LEGEND = {
    "negotiate": "pale amber",
    "queue": "pale grey",
    "operation": OTHER,
    "shard": "pale blue",
    "pack and unpack": "pale purple",
}


@dataclass
class Bar:
    name: str
    begin: float  # ms
    end: float
    depth: int


#: A tensor's name, and 0 or its stream's number plus 1.
Row = tuple[str, int]


def read(text: str) -> tuple[dict[Row, list[Bar]], list[float]]:
    """Returns bars by tensor and row, in order of appearance, and the moments of agreements."""
    # The file of a process that died lacks the closing bracket.
    events = json.loads(text if text.rstrip().endswith("]") else text.rstrip().rstrip(",") + "]")
    names: dict[int, str] = {}
    bars: dict[Row, list[Bar]] = {}
    under_way: dict[tuple[int, int], list[Bar]] = defaultdict(list)
    cycles = []
    for event in events:
        row = (event["pid"], event.get("tid", 0))
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "B":
            time = event["ts"] / 1000
            under_way[row].append(Bar(event["name"], time, time, len(under_way[row])))
        elif event["ph"] == "E":
            bar = under_way[row].pop()
            bar.end = event["ts"] / 1000
            bars.setdefault((names[row[0]], row[1]), []).append(bar)
        elif event["ph"] == "i":
            cycles.append(event["ts"] / 1000)
    return bars, cycles


def draw(text: str, begin: float, end: float, title: str = "A timeline") -> str:
    bars, cycles = read(text)
    rows: dict[Row, list[Bar]] = {
        row: kept
        for row, all_bars in bars.items()
        if (kept := [bar for bar in all_bars if bar.end > begin and bar.begin < end])
    }
    end = min(end, max(bar.end for kept in rows.values() for bar in kept))
    many = len(rows) > MANY_ROWS
    if many:
        rows = joined(rows)
        order = sorted(rows, key=lambda row: (busy_from(rows[row]), row[0]))
    else:
        first = {tensor: bars[tensor, 0][0].begin for tensor, tid in bars if tid == 0}
        order = sorted(rows, key=lambda row: (first[row[0]], row[1]))
    step = ROW[many]
    bottom = TOP + step * len(order)
    canvas = Canvas(bottom + 62, title, SIZE[many])

    def x(time: float) -> float:
        clipped = min(max(time, begin), end)
        return LEFT + (WIDTH - LEFT - RIGHT) * (clipped - begin) / (end - begin)

    for time in cycles:
        if begin <= time <= end:
            canvas.path(f"M{x(time):.1f} {TOP - 6} V{bottom}", "accent", dash="3 3", width=1)
    for i, row in enumerate(order):
        top = TOP + i * step
        label(canvas, row, top + step / 2 + 2)
        drawn = [(bar, x(bar.begin), x(bar.end)) for bar in rows[row]]
        for bar, left, right in sorted(drawn, key=lambda one: one[0].depth):
            rectangle(canvas, bar, left, right, top, step - 4)
        name_bars(canvas, drawn, top + step / 2 + 2, SIZE[many])
    spacing = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if (end - begin) / s <= 12)
    for tick in range(int((end - begin) / spacing) + 1):
        at = x(begin + tick * spacing)
        canvas.path(f"M{at:.1f} {bottom} v5", width=1)
        canvas.text(at, bottom + 17, f"{tick * spacing:g} ms", anchor="middle", size=11)
    drawn_colours = {colour(bar.name) for kept in rows.values() for bar in kept}
    legend(canvas, bottom + 36, drawn_colours, agreements=bool(cycles))
    return canvas.document()


def joined(rows: dict[Row, list[Bar]]) -> dict[Row, list[Bar]]:
    """Returns a row for each tensor; the bars of its streams lie on those of the tensor."""
    found: dict[Row, list[Bar]] = defaultdict(list)
    for (tensor, tid), bars in sorted(rows.items(), key=lambda one: one[0][1]):
        on_top = 1 if tid > 0 else 0
        for bar in bars:
            of_stream = f", stream {tid - 1}" if bar.name.startswith("SHARD") else ""
            name = f"{bar.name}{of_stream}"
            found[tensor, 0].append(Bar(name, bar.begin, bar.end, bar.depth + on_top))
    return found


def busy_from(bars: Iterable[Bar]) -> float:
    """Returns when the first stream begins, or else the operation."""
    streams = [bar.begin for bar in bars if bar.name.startswith("SHARD")]
    return min(streams or [bar.begin for bar in bars])


def label(canvas: Canvas, row: Row, y: float) -> None:
    tensor, tid = row
    if tid == 0:
        canvas.text(16, y, tensor)
    else:
        canvas.text(LEFT - 10, y, f"stream {tid - 1}", colour="muted", anchor="end")


def rectangle(
    canvas: Canvas, bar: Bar, left: float, right: float, top: float, height: float
) -> None:
    inset = min(2 * bar.depth, height / 4)
    width = max(right - left, 1.0)
    fill = colour(bar.name)
    canvas.box(left, top + inset, width, height - 2 * inset, fill, radius=0, edge=0.5)


def name_bars(canvas: Canvas, drawn: list[tuple[Bar, float, float]], y: float, size: float) -> None:
    """Names each bar in the first room in it that no bar on top of it takes."""
    for bar, left, right in drawn:
        above = sorted((one[1], one[2]) for one in drawn if one[0].depth > bar.depth)
        taken = left
        for one_left, one_right in [*above, (right, right)]:
            if min(one_left, right) - taken >= 8 + text_width(bar.name, size):
                canvas.text(taken + 4, y, bar.name)
                break
            if one_left < right:
                taken = max(taken, one_right)


def text_width(text: str, size: float) -> float:
    """Returns no less than the pixels that a text takes in the font of the pictures."""
    return size * sum(0.74 if letter.isupper() else 0.61 for letter in text)


def legend(canvas: Canvas, y: float, drawn: set[str], agreements: bool) -> None:
    x = float(LEFT)
    for words, fill in LEGEND.items():
        if fill not in drawn:
            continue
        canvas.box(x, y, 14, 11, fill, radius=0, edge=0.5)
        canvas.text(x + 20, y + 10, words, size=11)
        x += 42 + 7 * len(words)
    if agreements:
        canvas.path(f"M{x + 7:g} {y - 1:g} v14", "accent", dash="3 3", width=1)
        canvas.text(x + 16, y + 10, "agreement", size=11)


def colour(name: str) -> str:
    return next((c for prefix, c in COLOURS.items() if name.startswith(prefix)), OTHER)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("timeline", type=Path, metavar="TIMELINE.json")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("window", type=float, nargs="*", metavar="MS", help="from, and to")
    args = parser.parse_args()
    if len(args.window) not in (0, 2):
        parser.error(f"the window is {args.window}; it must be two times, FROM_MS and TO_MS")
    begin, end = args.window or (0, float("inf"))
    args.out.write_text(draw(args.timeline.read_text(), begin, end))


if __name__ == "__main__":
    main()
