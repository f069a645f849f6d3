"""The look that all pictures share: a card with a ground of its own, light or dark.

Each picture brings its ground along, so that its text is as readable on a page of any colour. A
stylesheet inside the picture turns card, text and lines dark for readers who prefer that. Viewers
that know no stylesheets show the light card. benchmarks/README.md says why.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
MONOSPACE = "DejaVu Sans Mono, Menlo, Consolas, monospace"
#: Pixels at which pages show a picture; all are drawn at this width, so that text keeps its size.
WIDTH = 900


@dataclass(frozen=True)
class Colour:
    light: str
    dark: str


#: What text is written on.
GROUNDS = {
    "ground": Colour("#f6f8fa", "#161b22"),
    "room": Colour("#ffffff", "#0e1318"),
}
TEXTS = {
    "text": Colour("#1f2328", "#e6edf3"),
    "muted": Colour("#57606a", "#b1bac4"),
    "accent": Colour("#a53d12", "#ff9b70"),
}
#: Lines that only divide; nothing is lost if they are overlooked.
LINES = {
    "border": Colour("#d0d7de", "#3d444d"),
    "grid": Colour("#dde2e8", "#2a3038"),
}
#: Lines, marks and bars, on both grounds.
MARKS = {
    "axis": Colour("#6e7781", "#8b949e"),
    "blue": Colour("#0969da", "#58a6ff"),
    "sky": Colour("#2f81c7", "#79c0ff"),
    "navy": Colour("#0a3069", "#a5d6ff"),
    "teal": Colour("#1b7c83", "#39c5cf"),
    "orange": Colour("#bc4c00", "#f0883e"),
    "red": Colour("#cf222e", "#ff7b72"),
    "pink": Colour("#bf3989", "#f778ba"),
    "purple": Colour("#8250df", "#bc8cff"),
    "violet": Colour("#512a97", "#d2a8ff"),
    "green": Colour("#1a7f37", "#3fb950"),
    "brown": Colour("#7d4e00", "#d29922"),
    "grey": Colour("#656d76", "#9aa4af"),
}
#: Fills that text is written on, too.
FILLS = {
    "pale blue": Colour("#cfe3fb", "#17406f"),
    "pale green": Colour("#cdebd3", "#1b4a28"),
    "pale amber": Colour("#f5e3b5", "#574312"),
    "pale purple": Colour("#e2d8f8", "#42306f"),
    "pale red": Colour("#fbdcd4", "#6b2b1c"),
    "pale grey": Colour("#e4e8ec", "#333b45"),
}
COLOURS = {**GROUNDS, **TEXTS, **LINES, **MARKS, **FILLS}
_NAMES = {colour.light: name for name, colour in COLOURS.items()}

_TAG = re.compile(r"<(\w+)((?:\s[^<>]*?)?)(/?)>")
_PAINT = re.compile(r"\b(fill|stroke)(?:=\"|:\s*)(#[0-9a-fA-F]{6})")


def light(name: str) -> str:
    """Returns the colour to draw with: `document` adds the dark one."""
    return COLOURS[name].light


def contrast(one: str, other: str) -> float:
    """Returns the ratio of two colours' luminances, as WCAG 2.2 defines it."""
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def document(body: str, width: float, height: float, title: str) -> str:
    """Returns the picture: `body` on its card.

    title: what a screen reader says. Raises ValueError for a colour that is not in COLOURS.
    """
    card = (
        f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8" '
        f'fill="{light("ground")}" stroke="{light("border")}"/>'
    )
    painted = _with_classes(f"{card}\n{body}")
    used = sorted(set(re.findall(r"\b[fs]-[a-z-]+", " ".join(_classes_in(painted)))))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'font-family="{FONT}">\n'
        f"<title>{html.escape(title)}</title>\n"
        f"<style>\n@media (prefers-color-scheme: dark) {{\n{_dark(used)}}}\n</style>\n"
        f"{painted.strip()}\n</svg>\n"
    )


def _with_classes(body: str) -> str:
    """Gives each element that is painted a class for each of its colours."""

    def marked(tag: re.Match[str]) -> str:
        name, attributes, end = tag.groups()
        paints = list(dict.fromkeys(_PAINT.findall(attributes)))
        if not paints:
            return tag[0]
        classes = " ".join(_class(kind, colour) for kind, colour in paints)
        return f'<{name} class="{classes}"{attributes}{end}>'

    return _TAG.sub(marked, body)


def _class(kind: str, colour: str) -> str:
    if colour.lower() not in _NAMES:
        raise ValueError(f"the colour is {colour}; it must be one of pictures.theme.COLOURS")
    return f"{kind[0]}-{_NAMES[colour.lower()].replace(' ', '-')}"


def _classes_in(body: str) -> Iterator[str]:
    return (found[1] for found in re.finditer(r'class="([^"]*)"', body))


def _dark(classes: list[str]) -> str:
    rules = []
    for name in classes:
        kind = "fill" if name.startswith("f-") else "stroke"
        colour = COLOURS[name[2:].replace("-", " ")].dark
        # Charts have their light colours in style attributes, which only this overrides.
        rules.append(f".{name} {{ {kind}: {colour} !important }}\n")
    return "".join(rules)
