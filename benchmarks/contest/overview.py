"""Draws the README's chart: three allreduces of Perseus beside Horovod and PyTorch.

It measures nothing. benchmarks/redraw.py calls it with the results of latency.py, bandwidth.py and
hosts.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from contest import charts

#: The results that it takes.
FROM = ("bandwidth", "hosts", "latency")
CONTENDERS = ("perseus", "torch gloo", "horovod gloo", "horovod mpi")
#: The panels: a title, a result, and what is the same in all rows of it.
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("4 bytes, 2 ranks on a host", "latency", {"bytes": 4, "ranks": 2}),
    (
        "64 MiB, 4 ranks on a host",
        "bandwidth",
        {"work": "allreduce", "bytes": 64 << 20, "ranks": 4},
    ),
    (
        "64 MiB, 4 ranks on 4 hosts",
        "hosts",
        {
            "work": "allreduce of 64 MiB",
            "hosts": 4,
            "ranks": 4,
            "caps": "1000 Mbit/s, 250 a connection",
        },
    ),
)
WORDS = charts.Words(
    "How long an allreduce takes: Perseus beside its peers",
    "median, shorter is better; hosts are network namespaces, 1 Gbit/s each, 250 Mbit/s a "
    "connection",
)


def draw(results: Path, file: Path) -> None:
    panels = []
    for title, name, case in CASES:
        rows = json.loads((results / f"{name}.json").read_text())["rows"]
        of_case = [
            row
            for row in rows
            if row["contender"] in CONTENDERS and all(row.get(key) == case[key] for key in case)
        ]
        panels.append(charts.Panel(title, charts.measured(of_case)))
    charts.bars(panels, file, WORDS, scale=charts.DURATION, bar=52, ratios=True)
