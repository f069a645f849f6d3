"""The settings that benchmarks/tuning.py sweeps, and how it reads a tuning log."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from contest import sweep

from perseus_core import settings

LOG = """trial,steps,streams,shard_mib,merge_mib,credit_mib,chunk_kib,ms_a_mib
0,5,4,1,4,16,128,0.31
1,8,4,0.25,4,16,128,0.29
"""
KEPT = "kept,26,4,0.25,4,16,128,\n"


def test_the_defaults_are_the_engines() -> None:
    engines = {setting.name: setting.default for setting in settings()}
    ours = {sweep.VARIABLES[name]: f"{value:g}" for name, value in sweep.DEFAULTS.items()}
    assert ours == {name: engines[name] for name in ours}


def test_a_grid_has_every_combination_once_and_the_defaults_first() -> None:
    combined = sweep.grid({"streams": (1, 2, 4), "shard_mib": (0.5, 16)})
    assert combined[0] == {"streams": 4, "shard_mib": 0.5}
    assert {(values["streams"], values["shard_mib"]) for values in combined} == {
        (streams, shard) for streams in (1, 2, 4) for shard in (0.5, 16)
    }
    assert len(combined) == 6


def test_the_defaults_take_part_also_where_no_ladder_has_them() -> None:
    assert sweep.grid({"streams": (1, 2)}) == [{"streams": 4}, {"streams": 1}, {"streams": 2}]


def test_fixed_settings_are_not_tuned() -> None:
    contender = sweep.fixed("perseus numpy", {"streams": 2, "shard_mib": 0.25})
    assert contender.label == "streams 2, shard 0.25 MiB"
    assert contender.environment == {
        "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1",
        "PERSEUS_ALLREDUCE_STREAMS": "2",
        "PERSEUS_ALLREDUCE_SHARD": "0.25",
    }


def test_the_choice_is_what_the_log_says_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG + KEPT)
    chosen = sweep.read_choice(log, ["streams", "shard_mib"])
    assert chosen == sweep.Choice({"streams": 4, "shard_mib": 0.25}, trials=2, steps=26)


def test_a_tuner_that_has_not_ended_has_chosen_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    assert sweep.read_choice(log, ["streams"]) is None
