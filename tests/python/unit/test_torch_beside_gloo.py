"""torch.distributed gives the same over Perseus as over Gloo: every function, every method.

The table is tests/torch_distributed/table.py. Every rank of a job runs all of its cases, once over
each backend, and what became of them is compared rank by rank.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
CASES = ROOT / "tests/torch_distributed"
sys.path.insert(0, str(CASES))
import table  # noqa: E402
from differences import (  # noqa: E402
    OF_TABLE,
    is_error,
    is_of_older,
    is_older,
    may_differ,
    version,
    without_need,
)

Outcomes = dict[str, Any]


def run(backend: str, size: int, folder: Path) -> list[Outcomes]:
    """Returns what became of each case on each rank."""
    folder.mkdir()
    command = [sys.executable, "-m", "perseus.run", "-np", str(size), sys.executable]
    command += [str(CASES / "run_cases.py"), backend, str(folder)]
    path = os.pathsep.join([str(CASES), str(ROOT)])
    job = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=280
    )
    found: list[Outcomes] = []
    for rank in range(size):
        lines = (folder / f"{rank}.jsonl").read_text().splitlines()
        found.append(dict(json.loads(line) for line in lines))
    unfinished = {name for each in found for name, what in each.items() if what == "begun"}
    assert job.returncode == 0 and not unfinished, f"{unfinished}\n{job.stderr[-4000:]}"
    return found


def same(ours: Any, gloos: Any) -> bool:
    """Compares outcomes; our type of an error may be a more special one than Gloo's."""
    if is_error(gloos):
        return is_error(ours) and gloos[1][0] in ours[1]
    if isinstance(gloos, list):
        return isinstance(ours, list) and len(ours) == len(gloos) and all(map(same, ours, gloos))
    if isinstance(gloos, dict):
        return (
            isinstance(ours, dict)
            and ours.keys() == gloos.keys()
            and all(same(ours[key], gloos[key]) for key in gloos)
        )
    if isinstance(gloos, float) and isinstance(ours, float):
        return math.isclose(ours, gloos, rel_tol=1e-6) or (math.isnan(ours) and math.isnan(gloos))
    return bool(ours == gloos)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_case_ends_as_it_does_on_gloo(size: int, tmp_path: Path) -> None:
    gloo = run("gloo", size, tmp_path / "gloo")
    ours = run("perseus", size, tmp_path / "perseus")
    differ: dict[str, list[str]] = {}
    for rank in range(size):
        for name, gloos in gloo[rank].items():
            our = ours[rank].get(name)
            if not same(our, gloos) and not is_of_older(name, our, gloos):
                texts = f"rank {rank}: Gloo {str(gloos)[:300]}; ours {str(our)[:300]}"
                differ.setdefault(name, []).append(texts)
    unexplained = {name: texts for name, texts in differ.items() if not may_differ(name)}
    assert not unexplained, json.dumps(unexplained, indent=1)
    # In groups of one, some runs do not differ.
    assert is_older() or not without_need(differ), "these have a reason to differ, and do not"


@pytest.mark.skipif(version() != OF_TABLE, reason="the table is of another PyTorch")
def test_every_function_has_a_case_or_a_reason_to_have_none() -> None:
    assert not table.missing()


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in (*table.CASES, *table.TIME_OUTS)]
    assert len(names) == len(set(names))
