"""Charts of measurements: contender by contender, in the colours of contest/appearance.py."""

from contest.charts.bars import Share, bars, by_ranks, shares
from contest.charts.figures import Words
from contest.charts.lines import lines
from contest.charts.panels import (
    DURATION,
    Panel,
    Scale,
    case_text,
    duration,
    measured,
    panels,
    three_digits,
)

__all__ = [
    "DURATION",
    "Panel",
    "Scale",
    "Share",
    "Words",
    "bars",
    "by_ranks",
    "case_text",
    "duration",
    "lines",
    "measured",
    "panels",
    "shares",
    "three_digits",
]
