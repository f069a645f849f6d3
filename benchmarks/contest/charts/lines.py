"""Lines of contenders over bytes or ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contest.appearance import in_order, look
from contest.charts.bars import bars
from contest.charts.figures import (
    HEAD,
    MARGIN,
    PANEL_HEAD,
    WIDTH,
    Words,
    axes_at,
    light,
    make,
    save,
    style,
)
from contest.charts.panels import Panel, Row, Scale, Value, case_text
from contest.report import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Pixels: of a line of the legend, of names beside lines, and of the values left of them.
LEGEND_LINE, ENDS, TICKS = 20, 196, 64
#: With more lines than this, bands would hide each other.
MOST_BANDS = 5


def lines(
    panels: Sequence[Panel], file: Path, words: Words, *, x: str, scale: Scale, columns: int = 3
) -> None:
    """Draws lines over `x` ("bytes" or "ranks"), on log axes. A band is p10 to p90.

    One panel has the contenders' names beside their lines; several have a legend. What was measured
    at one place only is drawn as bars.
    """
    places = {row[x] for panel in panels for row in panel.rows}
    if len(places) == 1:
        where = case_text(x, places.pop())
        titled = [Panel(f"{panel.title}, {where}", panel.rows) for panel in panels]
        bars(titled, file, words, scale=scale, columns=columns)
        return
    alone = len(panels) == 1
    labels = in_order(row["contender"] for panel in panels for row in panel.rows)
    columns = min(columns, len(panels))
    count = -(-len(panels) // columns)
    legend_columns = 3
    legend = 0 if alone else -(-len(labels) // legend_columns) * LEGEND_LINE + 24
    right = ENDS if alone else MARGIN
    # The first and last size of neighbours need room below their axes.
    gap, below = (34, 26) if x == "bytes" else (18, 44)
    width = (WIDTH - MARGIN - TICKS - right - gap * (columns - 1)) / columns
    height = 320 if alone else 190
    with style():
        step = PANEL_HEAD + height + below
        top = HEAD - (PANEL_HEAD if alone else 0)
        figure = make(top + step * count + legend + 6, words)
        for at in range(count):
            beside = panels[at * columns : (at + 1) * columns]
            values = [
                scale.value({**row, "median": row[key]})
                for panel in beside
                for row in panel.rows
                for key in (("p10", "median", "p90") if _has_bands(panel.rows) else ("median",))
            ]
            for column, panel in enumerate(beside):
                left = MARGIN + TICKS + column * (width + gap)
                axes = axes_at(figure, left, top + at * step + PANEL_HEAD, width, height)
                if not alone:
                    axes.set_title(panel.title, loc="left")
                _draw_lines(axes, panel.rows, x, scale.value, filled=width)
                _value_axis(axes, values, scale.text, named=column == 0)
                if x != "bytes":
                    axes.set_xlabel(x)
            if alone:
                _name_ends(figure, axes, panels[0].rows, x, scale.value, height)
        if not alone:
            _legend(figure, axes, labels, legend_columns)
        save(figure, file, words)


def _has_bands(rows: Sequence[Row]) -> bool:
    return len({row["contender"] for row in rows}) <= MOST_BANDS


def _draw_lines(axes: Axes, rows: Sequence[Row], x: str, value: Value, filled: float) -> None:
    for label in in_order(row["contender"] for row in rows):
        own = sorted((row for row in rows if row["contender"] == label), key=lambda row: row[x])
        at = [row[x] for row in own]
        drawn = _line_style(label)
        axes.plot(at, [value(row) for row in own], **drawn)
        if not _has_bands(rows):
            continue
        low, high = ([value({**row, "median": row[key]}) for row in own] for key in ("p10", "p90"))
        axes.fill_between(at, low, high, color=drawn["color"], alpha=0.12, linewidth=0)
    axes.set_xscale("log", base=2)
    values = sorted({row[x] for row in rows})
    # A size takes some 52 pixels, a number of ranks some 40.
    most = max(2, int(filled / (56 if x == "bytes" else 40)))
    ticks = _spread(values, most)
    axes.set_xticks(ticks, [_tick(x, tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(True)


def _tick(x: str, value: int) -> str:
    return bytes_text(value) if x == "bytes" else f"{value:,}"


def _spread(values: Sequence[int], most: int) -> list[int]:
    """Returns values that are as far from each other, on a log axis, as `most` labels would be."""
    if len(values) <= most:
        return list(values)
    least = math.log2(values[-1] / values[0]) / most
    shown = [values[0]]
    for one in values[1:]:
        # Powers of two are even steps; others would make the axis hard to read.
        if one & (one - 1) == 0 and math.log2(one / shown[-1]) >= least:
            shown.append(one)
    return shown


def _line_style(label: str) -> dict[str, Any]:
    of = look(label)
    ours = label.startswith("perseus")
    return {
        "color": light(of.colour),
        "linewidth": 2.4 if ours else 1.5,
        "linestyle": (0, of.dashes) if of.dashes else "-",
        "marker": of.marker or "None",
        "markersize": 5 if ours else 4,
        "zorder": 3 if ours else 2,
    }


def _value_axis(
    axes: Axes, values: Sequence[float], text: Callable[[float], str], named: bool
) -> None:
    from matplotlib import ticker

    low, high = min(values), max(values)
    room = (high / low) ** 0.04 * 1.05
    axes.set_yscale("log")
    axes.set_ylim(low / room, high * room)
    decades = math.log10(high / low)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1,) if decades > 3 else (1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: text(value) if named else "")
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def _name_ends(
    figure: Figure, axes: Axes, rows: Sequence[Row], x: str, value: Value, height: float
) -> None:
    """Writes each contender's name beside the end of its line, and moves names apart."""
    last = {row["contender"]: row for row in sorted(rows, key=lambda row: row[x])}
    low, high = axes.get_ylim()
    place = {
        label: height * math.log(value(row) / low) / math.log(high / low)
        for label, row in last.items()
    }
    at_end = max(row[x] for row in rows)
    for label, middle in apart(place, LEGEND_LINE - 3).items():
        of, own = look(label), last[label]
        axes.annotate(
            of.name,
            xy=(own[x], value(own)),
            xytext=(1, middle / height),
            textcoords=_beside(axes, 26),
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": light(of.colour),
                "linewidth": 1.2,
                "shrinkA": 3,
                "relpos": (0, 0.5),
                "shrinkB": 4 if own[x] == at_end else 2,
            },
            annotation_clip=False,
        )


def _beside(axes: Axes, pixels: float) -> Any:
    """Returns coordinates of the axes' box, moved right."""
    from matplotlib.transforms import ScaledTranslation

    move = ScaledTranslation(pixels / 72, 0, axes.get_figure().dpi_scale_trans)
    return axes.transAxes + move


def apart(places: Mapping[str, float], least: float) -> dict[str, float]:
    """Returns the places in their order, each at least `least` from the next, moved little."""
    groups: list[tuple[list[str], float]] = []  # names from low to high, and their middle
    for name in sorted(places, key=lambda name: places[name]):
        group, middle = [name], places[name]
        while groups and middle - groups[-1][1] < least * (len(group) + len(groups[-1][0])) / 2:
            before, its_middle = groups.pop()
            total = len(before) + len(group)
            middle = (its_middle * len(before) + middle * len(group)) / total
            group = before + group
        groups.append((group, middle))
    return {
        name: middle + least * (at - (len(group) - 1) / 2)
        for group, middle in groups
        for at, name in enumerate(group)
    }


def _legend(figure: Figure, axes: Axes, labels: Sequence[str], columns: int) -> None:
    from matplotlib.lines import Line2D

    # A legend fills its columns from above; lines of it read better.
    rows = -(-len(labels) // columns)
    width = (WIDTH - 2 * MARGIN) / columns
    height = figure.get_figheight() * 72
    for at, label in enumerate(labels):
        line, column = divmod(at, columns)
        left = MARGIN + column * width
        y = 1 - (height - 14 - LEGEND_LINE * (rows - line) + LEGEND_LINE / 2) / height
        ends = [left / WIDTH, (left + 17) / WIDTH, (left + 34) / WIDTH]
        figure.add_artist(Line2D(ends, [y] * 3, markevery=[1], **_line_style(label)))
        figure.text((left + 42) / WIDTH, y, look(label).name, va="center")
