"""Fixed values of the settings that Perseus tunes, and the choice that its tuner reports."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contest.launch import Contender, variant

#: The names that the tuning log uses.
VARIABLES = {
    "streams": "PERSEUS_ALLREDUCE_STREAMS",
    "shard_mib": "PERSEUS_ALLREDUCE_SHARD",
    "merge_mib": "PERSEUS_ALLREDUCE_FUSION",
    "credit_mib": "PERSEUS_CREDIT",
    "chunk_kib": "PERSEUS_CHUNK",
}
UNITS = {"shard_mib": " MiB", "merge_mib": " MiB", "credit_mib": " MiB", "chunk_kib": " KiB"}

#: Values for some of VARIABLES.
Values = Mapping[str, float]

DEFAULTS: Values = {
    "streams": 4,
    "shard_mib": 0.5,
    "merge_mib": 0.5,
    "credit_mib": 16,
    "chunk_kib": 128,
}


def text(values: Values) -> str:
    """ "streams 4, shard 1 MiB" """
    return ", ".join(
        f"{name.partition('_')[0]} {value:g}{UNITS.get(name, '')}" for name, value in values.items()
    )


def grid(ladders: Mapping[str, Sequence[float]]) -> list[Values]:
    """Returns every combination; the defaults come first, even if they are not among them."""
    defaults = {name: DEFAULTS[name] for name in ladders}
    combined = [
        dict(zip(ladders, values, strict=True)) for values in itertools.product(*ladders.values())
    ]
    return [defaults, *(values for values in combined if values != defaults)]


def fixed(base: str, values: Values) -> Contender:
    """Returns `base` with these settings, and tuning off."""
    variables = {VARIABLES[name]: f"{value:g}" for name, value in values.items()}
    return variant(base, text(values), PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING="1", **variables)


@dataclass(frozen=True)
class Choice:
    """The tuner's final values, and the trials and training steps that it took to find them."""

    values: Values
    trials: int
    steps: int


def read_choice(log: Path, names: Sequence[str]) -> Choice | None:
    """Reads `names` from a tuning log; returns None if the tuner has not finished."""
    with log.open() as file:
        rows = list(csv.DictReader(file))
    if not rows or rows[-1]["trial"] != "kept":
        return None
    kept = rows[-1]
    values = {name: float(kept[name]) for name in names}
    return Choice(values, trials=len(rows) - 1, steps=int(kept["steps"]))
