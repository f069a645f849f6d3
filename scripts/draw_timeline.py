"""draw_timeline.py TIMELINE.json OUT.svg [FROM_MS TO_MS]: draws a part of a timeline.

For pages that cannot embed chrome://tracing. Rows are tensors and, below each, its streams.
"""

from __future__ import annotations

import html
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

WIDTH = 1000
LEFT = 150
ROW = 22
COLOURS = {"NEGOTIATE": "#d9b45b", "QUEUE": "#c9ccd1", "SHARD": "#6d9bc3", "PACK": "#8c6bb1"}
COLOURS["UNPACK"] = COLOURS["PACK"]
OTHER = "#9ac29a"  # the operation itself


@dataclass
class Bar:
    name: str
    begin: float  # ms
    end: float
    depth: int


def read(text: str) -> tuple[dict[tuple[str, int], list[Bar]], list[float]]:
    """Returns bars by tensor and row, in order of appearance, and the moments of agreements."""
    # The file of a process that died lacks the closing bracket.
    events = json.loads(text if text.rstrip().endswith("]") else text.rstrip().rstrip(",") + "]")
    names: dict[int, str] = {}
    bars: dict[tuple[str, int], list[Bar]] = {}
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


def draw(text: str, begin: float, end: float) -> str:
    bars, cycles = read(text)
    shown = {
        row: kept
        for row, all_bars in bars.items()
        if (kept := [bar for bar in all_bars if bar.end > begin and bar.begin < end])
    }
    end = min(end, max(bar.end for kept in shown.values() for bar in kept))
    first = {tensor: bars[tensor, 0][0].begin for tensor, tid in bars if tid == 0}
    order = sorted(shown, key=lambda row: (first[row[0]], row[1]))

    def x(time: float) -> float:
        clipped = min(max(time, begin), end)
        return LEFT + (WIDTH - LEFT - 10) * (clipped - begin) / (end - begin)

    height = ROW * len(order) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for i, row in enumerate(order):
        top = 8 + i * ROW
        out.append(label(row, top))
        for bar in sorted(shown[row], key=lambda bar: bar.depth):
            out.append(rectangle(bar, x(bar.begin), x(bar.end), top + 2 * bar.depth))
    bottom = 8 + ROW * len(order)
    for time in cycles:
        if begin <= time <= end:
            out.append(
                f'<path d="M{x(time):.1f} 4 V{bottom}" stroke="#b5482a" stroke-dasharray="3 3"/>'
            )
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if (end - begin) / s <= 12)
    for tick in range(int((end - begin) / step) + 1):
        at = x(begin + tick * step)
        out.append(f'<path d="M{at:.1f} {bottom} v5" stroke="#5b6b7b"/>')
        out.append(text_at(at, bottom + 18, f"{tick * step:g} ms", "middle"))
    return "\n".join([*out, "</svg>"]) + "\n"


def label(row: tuple[str, int], top: float) -> str:
    tensor, tid = row
    if tid == 0:
        return text_at(8, top + 14, tensor, "start")
    return text_at(LEFT - 10, top + 14, f"stream {tid - 1}", "end", "#5b6b7b")


def rectangle(bar: Bar, left: float, right: float, top: float) -> str:
    width = max(right - left, 1.0)
    shape = (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 4 - 4 * bar.depth}" '
        f'fill="{colour(bar.name)}" stroke="#ffffff" stroke-width="0.5"/>'
    )
    if width < 7.5 * len(bar.name):
        return shape
    return shape + text_at(left + 4, top + 13 - 2 * bar.depth, bar.name, "start")


def colour(name: str) -> str:
    return next((c for prefix, c in COLOURS.items() if name.startswith(prefix)), OTHER)


def text_at(x: float, y: float, text: str, anchor: str, fill: str = "#1d2730") -> str:
    escaped = html.escape(text)
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="{fill}">{escaped}</text>'


def main() -> None:
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    source, target, *window = sys.argv[1:]
    begin, end = map(float, window or ("0", "inf"))
    Path(target).write_text(draw(Path(source).read_text(), begin, end))


if __name__ == "__main__":
    main()
