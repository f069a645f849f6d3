"""Means of a few runs, with 95 % confidence intervals by Student's t."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

#: The 97.5 % quantiles of Student's t, for 1, 2, ... degrees of freedom.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.96


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and half the width of its interval, None for a single value."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None
    freedom = len(values) - 1
    quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL
    return mean, quantile * statistics.stdev(values) / len(values) ** 0.5


def difference(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float | None]:
    """Returns the interval of the mean difference of runs that belong together."""
    return interval([one - other for one, other in zip(values, reference, strict=True)])
