"""The life of an elastic job, as benchmarks/elastic_life.py has recorded a real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pictures.canvas import Canvas
from pictures.theme import WIDTH

FILE = "elastic.svg"
RECORD = Path(__file__).resolve().parents[2] / "docs/timelines/elastic.json"
LEFT, RIGHT, TOP, ROW, BAR = 138, 24, 126, 38, 24
#: Worlds that begin within so many seconds of each other on several processes are one.
SAME_WORLD = 0.7
COLOURS = ("pale blue", "pale green", "pale purple", "pale amber", "pale red")


@dataclass
class World:
    size: int
    first: float  # when the first of its ranks has done a step
    last: float  # when the last of its ranks has done its last step

    @property
    def middle(self) -> float:
        return (self.first + self.last) / 2


def worlds_of(processes: Sequence[dict[str, Any]]) -> list[World]:
    """Returns the job's worlds in order."""
    found: list[World] = []
    parts = [part for process in processes for part in process["worlds"]]
    for part in sorted(parts, key=lambda part: float(part["first"])):
        if found and part["first"] - found[-1].first < SAME_WORLD:
            found[-1].last = max(found[-1].last, part["last"])
        else:
            found.append(World(part["size"], part["first"], part["last"]))
    return found


def longest_gaps(processes: Sequence[dict[str, Any]]) -> list[float]:
    """Returns, for each change of the world, the longest time between two steps of a process."""
    worlds = worlds_of(processes)
    gaps = [0.0] * (len(worlds) - 1)
    for process in processes:
        for before, after in zip(process["worlds"], process["worlds"][1:], strict=False):
            change = next(i for i, w in enumerate(worlds) if before["first"] - w.first < SAME_WORLD)
            gaps[change] = max(gaps[change], after["first"] - before["last"])
    return gaps


def draw() -> str:
    record = json.loads(RECORD.read_text())
    processes = record["processes"]
    worlds = worlds_of(processes)
    end = max(world.last for world in worlds)
    rows = len(processes)
    height = TOP + rows * ROW + 40
    canvas = Canvas(
        height, "An elastic job: a rank joins, one is killed and replaced, a host is drained"
    )

    def x(moment: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * moment / end

    canvas.heading(
        "The life of a job",
        "Bars are processes. No process that goes on is ever started again.",
    )
    for number, world in enumerate(worlds):
        colour = COLOURS[number % len(COLOURS)]
        canvas.box(x(world.first), 68, x(world.last) - x(world.first), 22, colour, None, 3)
        name = f"{world.size} ranks"
        canvas.text((x(world.first) + x(world.last)) / 2, 83, name, anchor="middle", size=11)
    for change, gap in enumerate(longest_gaps(processes)):
        at = x((worlds[change].last + worlds[change + 1].first) / 2)
        canvas.path(f"M{at:.1f} 92 V{TOP + rows * ROW:.1f}", "grid")
        canvas.text(at, 108, f"{gap * 1e3:.0f} ms", colour="muted", anchor="middle", size=11)
    for row, process in enumerate(processes):
        _draw_process(canvas, TOP + row * ROW, process, worlds, x)
    _draw_axis(canvas, TOP + rows * ROW + 6, end, x)
    step = record["step_seconds"] * 1e3
    canvas.text(
        WIDTH - RIGHT,
        50,
        f"ms: longest time between two steps; a usual step {step:.0f} ms",
        colour="muted",
        anchor="end",
        size=11,
    )
    return canvas.document()


def _draw_process(
    canvas: Canvas, y: float, process: dict[str, Any], worlds: Sequence[World], x: Any
) -> None:
    canvas.text(20, y + 16, f"{process['host']}, slot {process['slot']}", size=11)
    began, first = process["began"], process["worlds"][0]["first"]
    canvas.box(x(began), y, x(first) - x(began), BAR, "pale grey", None, 3)
    if x(first) - x(began) > 50:
        canvas.text((x(began) + x(first)) / 2, y + 16, "starts", anchor="middle", size=11)
    for part in process["worlds"]:
        number = next(i for i, w in enumerate(worlds) if part["first"] - w.first < SAME_WORLD)
        width = x(part["last"]) - x(part["first"])
        canvas.box(x(part["first"]), y, width, BAR, COLOURS[number % len(COLOURS)], None, 3)
    last = x(process["worlds"][-1]["last"])
    if process["end"] == "killed":
        canvas.path(f"M{last - 5:.1f} {y + 7} l10 10 m0 -10 l-10 10", "red", 2.4)
        canvas.text(last + 12, y + 16, "kill -9", colour="accent", size=11)
    elif process["end"] == "drained":
        canvas.path(f"M{last:.1f} {y} v{BAR}", "orange", 3)
        canvas.text(last + 8, y + 16, "drained", colour="accent", size=11)


def _draw_axis(canvas: Canvas, y: float, end: float, x: Any) -> None:
    canvas.path(f"M{x(0):.1f} {y:.1f} H{x(end):.1f}")
    for second in range(0, int(end) + 1, 2):
        canvas.path(f"M{x(second):.1f} {y:.1f} v4")
        canvas.text(x(second), y + 18, f"{second} s", colour="muted", anchor="middle", size=11)
