"""Fixed settings of what Perseus tunes by itself, and what its tuner says it has chosen."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contest.launch import Contender, variant

#: As the tuning log names them.
VARIABLES = {
    "streams": "PERSEUS_ALLREDUCE_STREAMS",
    "shard_mib": "PERSEUS_ALLREDUCE_SHARD",
    "merge_mib": "PERSEUS_ALLREDUCE_FUSION",
    "credit_mib": "PERSEUS_CREDIT",
    "chunk_kib": "PERSEUS_CHUNK",
}
UNITS = {"shard_mib": " MiB", "merge_mib": " MiB", "credit_mib": " MiB", "chunk_kib": " KiB"}

#: Values of some of VARIABLES.
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
    """Every combination; the defaults come first, among them or not."""
    defaults = {name: DEFAULTS[name] for name in ladders}
    combined = [
        dict(zip(ladders, values, strict=True)) for values in itertools.product(*ladders.values())
    ]
    return [defaults, *(values for values in combined if values != defaults)]


def fixed(base: str, values: Values) -> Contender:
    """Such settings, which stay."""
    variables = {VARIABLES[name]: f"{value:g}" for name, value in values.items()}
    return variant(base, text(values), PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING="1", **variables)


@dataclass(frozen=True)
class Choice:
    """What the tuner keeps; how many trials and training steps it took to find that."""

    values: Values
    trials: int
    steps: int


def read_choice(log: Path, names: Sequence[str]) -> Choice | None:
    """Of a tuning log; None if the tuner has not come to an end. `names`: of which values."""
    with log.open() as file:
        rows = list(csv.DictReader(file))
    if not rows or rows[-1]["trial"] != "kept":
        return None
    kept = rows[-1]
    values = {name: float(kept[name]) for name in names}
    return Choice(values, trials=len(rows) - 1, steps=int(kept["steps"]))
