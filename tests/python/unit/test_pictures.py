"""Tests that the pictures of docs/ are up to date, and that all can be read on any page."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts/draw_pictures.py"
PICTURES = sorted([*(ROOT / "docs").glob("*.svg"), *(ROOT / "benchmarks/results").glob("*.svg")])
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
#: What WCAG 2.2 asks of text (1.4.3), and of what else must be seen (1.4.11).
OF_TEXT, OF_MARKS = 4.5, 3.0


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.fixture
def theme() -> ModuleType:
    return importlib.import_module("pictures.theme")


def test_the_stored_pictures_are_what_the_scripts_draw() -> None:
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_picture_that_is_old_missing_or_not_drawn_is_noticed(tmp_path: Path) -> None:
    out_of_date = importlib.import_module("draw_pictures").out_of_date
    for name in ("same", "old", "by-hand"):
        (tmp_path / f"{name}.svg").write_text(name)
    drawn = {"same.svg": "same", "old.svg": "new", "missing.svg": "new"}
    assert out_of_date(drawn, tmp_path) == ["by-hand.svg", "missing.svg", "old.svg"]


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_colours_are_told_from_the_grounds_that_they_are_on(theme: ModuleType, mode: str) -> None:
    def of(colours: dict[str, object]) -> dict[str, str]:
        return {name: getattr(colour, mode) for name, colour in colours.items()}

    grounds = of({**theme.GROUNDS, **theme.FILLS})
    weak = [
        (text, ground)
        for text, colour in of(theme.TEXTS).items()
        for ground, its in grounds.items()
        # No picture writes in the accent on a fill.
        if (text != "accent" or ground in theme.GROUNDS) and theme.contrast(colour, its) < OF_TEXT
    ]
    weak += [
        (mark, ground)
        for mark, colour in of(theme.MARKS).items()
        for ground, its in of(theme.GROUNDS).items()
        if theme.contrast(colour, its) < OF_MARKS
    ]
    assert weak == []


def test_contrast_is_that_of_wcag(theme: ModuleType) -> None:
    assert theme.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert theme.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_each_colour_can_be_told_by_its_light_one(theme: ModuleType) -> None:
    assert len({colour.light for colour in theme.COLOURS.values()}) == len(theme.COLOURS)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda file: file.name)
def test_a_picture_has_its_own_ground_and_a_dark_colour_for_each_light_one(
    theme: ModuleType, picture: Path
) -> None:
    text = picture.read_text()
    assert re.search(r'<svg [^>]*width="900" [^>]*role="img"[^>]*>\n<title>\w', text)
    assert re.search(r'<rect class="f-ground s-border" x="0.5" y="0.5" width="899"', text)
    style, body = text.split("</style>", 1)
    for kind, colour in re.findall(r"\b(fill|stroke)(?:=\"|: )(#\w+)", body):
        name = next(name for name, one in theme.COLOURS.items() if one.light == colour)
        marked = f"{kind[0]}-{name.replace(' ', '-')}"
        dark = theme.COLOURS[name].dark
        assert f".{marked} {{ {kind}: {dark} !important }}" in style, (kind, colour)
        assert re.search(rf'class="[^"]*\b{marked}\b', body)


def test_a_colour_that_has_no_dark_one_is_refused(theme: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"the colour is #123456; it must be one of"):
        theme.document('<rect fill="#123456"/>', 10, 10, "title")


def test_words_in_a_picture_are_escaped(theme: ModuleType) -> None:
    canvas = importlib.import_module("pictures.canvas").Canvas(10, "a < b")
    canvas.text(0, 0, "c & d")
    text = canvas.document()
    assert "<title>a &lt; b</title>" in text
    assert ">c &amp; d</text>" in text


@pytest.mark.parametrize("picture", PICTURES, ids=lambda file: file.name)
def test_a_picture_is_on_a_page_or_linked_from_one(picture: Path) -> None:
    assert any(f"{picture.name})" in page.read_text() for page in PAGES)


def test_pictures_on_pages_have_words_for_those_who_cannot_see_them() -> None:
    for page in PAGES:
        for words, file in re.findall(r"!\[([^\]]*)\]\(([^)]+\.svg)\)", page.read_text()):
            assert len(words) > 15, (page.name, file)


# The model of priority.svg.


@pytest.fixture
def priority() -> ModuleType:
    return importlib.import_module("pictures.priority")


@pytest.mark.parametrize("choice", ["first_come", "earliest_layer"])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_link_moves_every_gradient_once_it_is_ready_and_one_at_a_time(
    priority: ModuleType, choice: str, overlap: bool
) -> None:
    step = priority.step(getattr(priority, choice), overlap)
    ready = {piece.layer: piece.end for piece in step.backward}
    for layer, megabytes in enumerate(priority.MEGABYTES):
        pieces = [piece for piece in step.link if piece.layer == layer]
        moved = sum(piece.end - piece.begin for piece in pieces)
        assert moved == pytest.approx(megabytes * 8 / priority.LINK_GBIT)
        assert pieces[0].begin >= ready[layer] - 1e-6
        awaited = [piece.end for piece in step.link if not overlap or piece.layer == layer]
        assert step.forward[layer].begin >= max(awaited) - 1e-6
    for lane in (step.backward, step.link, step.forward):
        for one, after in itertools.pairwise(lane):
            assert after.begin >= one.end - 1e-6


def test_priority_comes_within_a_shard_of_the_best_schedule(
    priority: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    step_seconds = importlib.import_module("contest.step_bound").step_seconds
    layers = len(priority.MEGABYTES)
    moving = [megabytes * 8 / priority.LINK_GBIT for megabytes in priority.MEGABYTES]
    times = ([priority.FORWARD_MS] * layers, [priority.BACKWARD_MS] * layers, moving)
    shard = priority.SHARD_MEGABYTES * 8 / priority.LINK_GBIT
    by_priority = priority.step(priority.earliest_layer, overlap=True).end
    first_come = priority.step(priority.first_come, overlap=False).end
    assert 0 <= by_priority - step_seconds(*times, overlap=True) + 1e-9 <= shard
    assert first_come == pytest.approx(step_seconds(*times, overlap=False))


def test_a_hierarchical_allreduce_sums_every_part_of_every_rank() -> None:
    hierarchical = importlib.import_module("pictures.hierarchical")
    everything = hierarchical.HOSTS * hierarchical.RANKS
    *_, last = hierarchical.states()
    assert last == [[[everything] * hierarchical.RANKS] * hierarchical.RANKS] * hierarchical.HOSTS


# Timelines.


def recording(tensors: int) -> str:
    """Returns a timeline of tensors that each move one shard."""
    events: list[dict[str, object]] = []
    for pid in range(tensors):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"t{pid}"}})
        for tid, name, begin, end in ((0, "ALLREDUCE", 0, 9000), (3, "SHARD 0", 1000, 8000)):
            events.append({"ph": "B", "pid": pid, "tid": tid, "name": name, "ts": begin})
            events.append({"ph": "E", "pid": pid, "tid": tid, "ts": end})
    return json.dumps(events)


@pytest.mark.parametrize(
    ("tensors", "words"), [(2, [">stream 2<", ">SHARD 0<"]), (21, [">SHARD 0, stream 2<"])]
)
def test_a_timeline_says_which_stream_each_shard_took(tensors: int, words: list[str]) -> None:
    drawn = importlib.import_module("draw_timeline").draw(recording(tensors), 0, float("inf"))
    for word in words:
        assert drawn.count(word) == tensors, word


def test_a_bar_is_named_where_no_bar_on_top_of_it_hides_the_name() -> None:
    draw_timeline = importlib.import_module("draw_timeline")
    canvas = importlib.import_module("pictures.canvas").Canvas(100, "title")
    whole, part = draw_timeline.Bar("WHOLE", 0, 9, 0), draw_timeline.Bar("IN", 0, 3, 1)
    narrow = draw_timeline.Bar("TOO LONG", 8, 9, 1)
    drawn = [(whole, 100.0, 400.0), (part, 100.0, 200.0), (narrow, 380.0, 400.0)]
    draw_timeline.name_bars(canvas, drawn, 20, 11)
    names = re.findall(r'<text [^>]*?\bx="(\d+)"[^>]*>([^<]+)<', canvas.document())
    assert names == [("204", "WHOLE"), ("104", "IN")]
