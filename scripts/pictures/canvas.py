"""The shapes that the pictures of docs/ are made of."""

from __future__ import annotations

import html

from pictures import theme


class Canvas:
    """A picture of theme.WIDTH, in pixels. Colours are names of theme.COLOURS; later shapes lie on
    top."""

    def __init__(self, height: float, title: str, size: float = 12.5) -> None:
        self._height = height
        self._title = title
        self._size = size
        self._shapes: list[str] = []
        self._tips: set[str] = set()

    def document(self) -> str:
        tips = "".join(_tip(colour) for colour in sorted(self._tips))
        defined = f"<defs>{tips}</defs>\n" if tips else ""
        body = f'<g font-size="{self._size:g}">\n' + "\n".join(self._shapes) + "\n</g>"
        return theme.document(defined + body, theme.WIDTH, self._height, self._title)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "room",
        stroke: str | None = "axis",
        radius: float = 5,
        dash: str = "",
        edge: float = 1,
    ) -> None:
        """Draws a rectangle. edge: the width of its outline."""
        line = f'stroke="{theme.light(stroke)}"' if stroke else 'stroke="none"'
        line += f' stroke-width="{edge:g}"' if edge != 1 else ""
        line += f' stroke-dasharray="{dash}"' if dash else ""
        self._shapes.append(
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}" rx="{radius:g}" fill="{theme.light(fill)}" {line}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        colour: str = "text",
        anchor: str = "start",
        size: float | None = None,
        bold: bool = False,
        code: bool = False,
        turned: bool = False,
    ) -> None:
        more = f' font-size="{size:g}"' if size else ""
        more += ' font-weight="bold"' if bold else ""
        more += f' font-family="{theme.MONOSPACE}"' if code else ""
        more += f' transform="rotate(-90 {_number(x)} {_number(y)})"' if turned else ""
        self._shapes.append(
            f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" '
            f'fill="{theme.light(colour)}"{more}>{html.escape(words, quote=False)}</text>'
        )

    def heading(self, words: str, below: str = "") -> None:
        """Writes the picture's headline, and a line below it."""
        self.text(20, 30, words, size=15, bold=True)
        if below:
            self.text(20, 50, below, colour="muted")

    def path(
        self,
        commands: str,
        colour: str = "axis",
        width: float = 1.3,
        dash: str = "",
        tip: bool = False,
        both: bool = False,
    ) -> None:
        """Draws a line by SVG's path commands. tip: with an arrowhead; both: one at each end."""
        more = f' stroke-dasharray="{dash}"' if dash else ""
        if tip or both:
            self._tips.add(colour)
            more += f' marker-end="url(#{_tip_name(colour)})"'
        if both:
            more += f' marker-start="url(#{_tip_name(colour)})"'
        self._shapes.append(
            f'<path d="{commands}" fill="none" stroke="{theme.light(colour)}" '
            f'stroke-width="{width:g}"{more}/>'
        )

    def number(self, x: float, y: float, number: int) -> None:
        """Draws a step's number in a disc."""
        self._shapes.append(
            f'<circle cx="{_number(x)}" cy="{_number(y)}" r="10" fill="{theme.light("accent")}"/>'
        )
        self.text(x, y + 4.3, str(number), colour="ground", anchor="middle", size=12, bold=True)


def _number(value: float) -> str:
    return f"{round(value, 1):g}"


def _tip_name(colour: str) -> str:
    return f"tip-{colour.replace(' ', '-')}"


def _tip(colour: str) -> str:
    return (
        f'<marker id="{_tip_name(colour)}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" '
        f'fill="{theme.light(colour)}"/></marker>'
    )
