"""draw_pictures.py [--check]: draws the pictures of docs/, or checks that they are up to date.

Those of timelines are drawn from the recordings in docs/timelines, the others by scripts/pictures.
With --check nothing is written: it exits with 1 if a picture is not what would be drawn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import draw_timeline
from pictures import architecture, elastic, hierarchical, launching, pipeline, priority

DOCS = Path(__file__).resolve().parents[1] / "docs"
DRAWN = (architecture, elastic, hierarchical, launching, pipeline, priority)
#: The recording, the picture, and what a screen reader says.
TIMELINES = (
    ("timeline.json", "timeline.svg", "A step: conv2 and conv1 overtake dense"),
    (
        "gpu.json",
        "gpu-timeline.svg",
        "Shards on two lanes of a GPU: conv2, bias and conv1 overtake",
    ),
    (
        "tensorflow.json",
        "tensorflow-timeline.svg",
        "Fifty gradients in nine shards on four streams",
    ),
)


def pictures() -> dict[str, str]:
    """Returns the text of each picture, by the name of its file."""
    drawn = {picture.FILE: picture.draw() for picture in DRAWN}
    for recording, file, title in TIMELINES:
        text = (DOCS / "timelines" / recording).read_text()
        drawn[file] = draw_timeline.draw(text, 0, float("inf"), title)
    return drawn


def out_of_date(drawn: dict[str, str], folder: Path) -> list[str]:
    """Returns the names of pictures in the folder that are missing, different, or not drawn."""
    stored = {file.name: file.read_text() for file in folder.glob("*.svg")}
    names = sorted(drawn.keys() | stored.keys())
    return [name for name in names if drawn.get(name) != stored.get(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one differs")
    drawn, check = pictures(), parser.parse_args().check
    if not check:
        for name, text in drawn.items():
            (DOCS / name).write_text(text)
    elif different := out_of_date(drawn, DOCS):
        sys.exit(f"docs/: out of date: {', '.join(different)}; make pictures draws them")


if __name__ == "__main__":
    main()
