"""Figures of matplotlib on the ground and in the colours of all pictures (scripts/pictures).

A figure is 900 pixels wide, as pages show it, so that its text keeps its size. The same rows give
the same file, byte by byte, with the same matplotlib (requirements/benchmarks.txt).
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from pictures import theme
from pictures.theme import WIDTH, light

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Pixels: around everything, of the headline, of a panel's title.
MARGIN, HEAD, PANEL_HEAD = 20, 66, 26
SIZE, SMALL = 12, 11


@dataclass(frozen=True)
class Words:
    """The headline of a chart, and what it shows, in a line below."""

    title: str
    below: str


def style() -> Any:
    import matplotlib

    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "perseus",
            "font.family": theme.FONT.split(", ")[:1],
            "font.size": SIZE,
            "text.color": light("text"),
            "axes.facecolor": light("room"),
            "axes.edgecolor": light("axis"),
            "axes.labelcolor": light("text"),
            "axes.labelsize": SMALL,
            "axes.titlesize": SIZE,
            "axes.titlecolor": light("text"),
            "axes.titlepad": 7,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": light("grid"),
            "grid.linewidth": 0.8,
            "xtick.color": light("axis"),
            "ytick.color": light("axis"),
            "xtick.labelcolor": light("text"),
            "ytick.labelcolor": light("text"),
            "xtick.labelsize": SMALL,
            "ytick.labelsize": SMALL,
            "xtick.major.size": 3,
            "ytick.major.size": 0,
        }
    )


def make(height: float, words: Words) -> Figure:
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor=light("ground"))
    place = {"x": MARGIN / WIDTH, "va": "baseline"}
    made.text(y=1 - 30 / height, s=words.title, fontsize=15, fontweight="bold", **place)
    made.text(y=1 - 50 / height, s=words.below, color=light("muted"), **place)
    return made


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Adds axes at these pixels, from the left and from above."""
    whole = figure.get_figheight() * 72
    return figure.add_axes(
        (left / WIDTH, 1 - (top + height) / whole, width / WIDTH, height / whole)
    )


def save(figure: Figure, file: Path, words: Words) -> None:
    if file.suffix != ".svg":
        figure.savefig(file, dpi=144)
        return
    figure.patch.set_visible(False)
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    body = text[text.index("<defs>") : text.rindex("</svg>")]
    # The picture names the font once, with what may stand in for it.
    body = body.replace(" font-family: 'DejaVu Sans';", "")
    height = round(figure.get_figheight() * 72)
    file.write_text(theme.document(body, WIDTH, height, f"{words.title}: {words.below}"))
