"""Bars of contenders, with their values and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contest.appearance import in_order, look
from contest.charts.figures import (
    HEAD,
    MARGIN,
    PANEL_HEAD,
    SMALL,
    WIDTH,
    Words,
    axes_at,
    light,
    make,
    save,
    style,
)
from contest.charts.panels import (
    Panel,
    Row,
    Scale,
    case_text,
    measured,
    panels,
    three_digits,
    values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Pixels from bar to bar, and from panel to panel.
BAR, GAP = 21, 18


def bars(
    panels: Sequence[Panel],
    file: Path,
    words: Words,
    *,
    scale: Scale,
    columns: int = 3,
    bar: float = BAR,
    ratios: bool = False,
) -> None:
    """Draws bars from left to right with their values; the names of all panels are at the left.

    A row's `bound`, if it has one, is a line across its bar. bar: pixels from one to the next.
    ratios: values also as multiples of the first bar's.
    """
    labels = in_order(row["contender"] for panel in panels for row in panel.rows)
    columns = min(columns, len(panels))
    count = -(-len(panels) // columns)
    names = 12 + max(len(look(label).name) for label in labels) * 6.9
    width = (WIDTH - MARGIN - names - MARGIN - GAP * (columns - 1)) / columns
    height = bar * len(labels)
    with style():
        step = PANEL_HEAD + height + 16
        figure = make(HEAD + step * count + 2, words)
        for at, panel in enumerate(panels):
            line, column = divmod(at, columns)
            left = MARGIN + names + column * (width + GAP)
            axes = axes_at(figure, left, HEAD + line * step + PANEL_HEAD, width, height)
            axes.set_title(panel.title, loc="left")
            _draw_bars(axes, panel.rows, labels, scale, ratios)
            axes.set_yticks(
                range(len(labels)), [look(label).name if column == 0 else "" for label in labels]
            )
        save(figure, file, words)


def _draw_bars(
    axes: Axes, rows: Sequence[Row], labels: Sequence[str], scale: Scale, ratios: bool
) -> None:
    of = {row["contender"]: row for row in rows}
    longest = max(max(scale.value(row), row.get("bound") or 0.0) for row in rows)
    axes.set_xlim(0, (1.75 if ratios else 1.42) * longest)
    axes.patch.set_visible(False)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    for place, label in enumerate(labels):
        if label not in of:
            _beside_bar(axes, 0, place, "not measured", "muted")
            continue
        length = scale.value(of[label])
        axes.barh(place, length, 0.66, color=light(look(label).colour))
        bound = of[label].get("bound")
        if bound:
            axes.vlines(bound, place - 0.46, place + 0.46, color=light("text"), linewidth=1.8)
        text = scale.text(length)
        if ratios and place > 0 and labels[0] in of:
            text += f", {three_digits(length / scale.value(of[labels[0]]))} \N{MULTIPLICATION SIGN}"
        _beside_bar(axes, max(length, bound or 0.0), place, text, "text")
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _beside_bar(axes: Axes, length: float, place: float, text: str, colour: str) -> None:
    axes.annotate(
        text,
        (length, place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=light(colour),
        fontsize=SMALL,
    )


def by_ranks(rows: Sequence[Row], file: Path, words: Words, *, case: str, scale: Scale) -> None:
    """Draws bars: a row of panels for each value under `case`, a column for each number of
    ranks."""
    drawn = measured(rows)
    ordered = sorted(drawn, key=lambda row: row["ranks"])
    of_case = {one: [row for row in ordered if row[case] == one] for one in values(drawn, case)}
    made = [
        Panel(f"{case_text(case, one)}, {part.title}", part.rows)
        for one, own in of_case.items()
        for part in panels(own, "ranks")
    ]
    counts = {len(values(own, "ranks")) for own in of_case.values()}
    columns = min(3, max(counts)) if max(counts) > 1 else min(3, len(made))
    bars(made, file, words, scale=scale, columns=columns)


@dataclass(frozen=True)
class Share:
    """A part of a whole, and where a mark is put beside it."""

    name: str
    part: float
    mark: float


def shares(
    rows: Sequence[Share], file: Path, words: Words, *, share: str, mark: str, whole: str
) -> None:
    """Draws a bar for each part of 1, with a mark; the words say what each is."""
    names = 12 + max(len(row.name) for row in rows) * 6.9
    width = WIDTH - 2 * MARGIN - names
    height = (BAR + 3) * len(rows)
    with style():
        figure = make(HEAD + height + 78, words)
        axes = axes_at(figure, MARGIN + names, HEAD + 4, width, height)
        places = range(len(rows))
        drawn = axes.barh(places, [row.part for row in rows], 0.66, color=light("blue"))
        ends = [(place - 0.44, place + 0.44) for place in places]
        marks = axes.vlines(
            [row.mark for row in rows], *zip(*ends, strict=True), color=light("text"), linewidth=2
        )
        line = axes.axvline(1, color=light("axis"), linestyle="--", linewidth=1.2)
        most = 1.2 * max(1.0, *(max(row.part, row.mark) for row in rows))
        axes.set_xlim(0, most)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        for place, row in enumerate(rows):
            end = max(row.part, row.mark, *([1.0] if row.part > 0.9 else []))
            _beside_bar(axes, end, place, f"{row.part:.2f}", "text")
        axes.set_yticks(places, [row.name for row in rows])
        figure.legend(
            [drawn, marks, line],
            [share, mark, whole],
            loc="lower left",
            bbox_to_anchor=((MARGIN - 6) / WIDTH, 8 / (HEAD + height + 78)),
            ncols=3,
            frameon=False,
        )
        save(figure, file, words)
