"""perseusrun --config-file: settings as horovodrun reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import RunRanks

from perseus.run import cli
from perseus.run.config_file import read_config

pytest.importorskip("yaml")

WHOLE = """
controller: mpi
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 3.5
  cache_capacity: 2048
  hierarchical_allreduce: false
  hierarchical_allgather: true
  torus_allreduce: true
autotune:
  enabled: false
  log_file: log.csv
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9
timeline:
  filename: timeline.json
  mark_cycles: true
stall_check:
  enabled: true
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: false
  num_nccl_streams: 2
  thread_affinity: 1
  gloo_timeout_seconds: 60
logging:
  level: INFO
  with_timestamp: true
"""


def options_of(path: Path, text: str, *arguments: str) -> Any:
    path.write_text(text)
    parser = cli.make_parser()
    options = parser.parse_args(["--config-file", str(path), *arguments, "true"])
    cli.apply_config(parser, options)
    return options


def test_every_setting_is_what_its_flag_makes_it(tmp_path: Path) -> None:
    options = options_of(tmp_path / "config.yaml", WHOLE)
    assert options.mpi
    assert options.settings == {
        "PERSEUS_ALLREDUCE_FUSION": "32",
        "PERSEUS_CACHE_CAPACITY": "",
        "HOROVOD_CACHE_CAPACITY": "2048",
        "PERSEUS_ALLREDUCE_MODE": "hierarchical",  # as torus_allreduce, too, has it
        "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1",
        "PERSEUS_TUNING_LOG": "log.csv",
        "PERSEUS_TUNING_WARM_UP": "",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
        "PERSEUS_TUNING_STEPS": "",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "20",
        "PERSEUS_TUNING_TRIALS": "",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "50",
        "PERSEUS_TIMELINE": "timeline.json",
        "PERSEUS_TIMELINE_MARK_CYCLES": "1",
        "PERSEUS_STALL_CHECK_DISABLE": "0",
        "PERSEUS_STALL_CHECK_TIME_SECONDS": "",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "PERSEUS_STALL_SHUTDOWN_TIME_SECONDS": "240",
        "PERSEUS_ALLREDUCE_STREAMS": "2",
        "PERSEUS_THREAD_AFFINITY": "1",
        "PERSEUS_START_TIMEOUT": "",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "60",
        "PERSEUS_LOG_LEVEL": "INFO",
        "PERSEUS_LOG_HIDE_TIME": "0",
    }
    assert [note.partition(" ")[0] for note in options.notes] == [
        "--cycle-time-ms",
        "--hierarchical-allgather",
        "--autotune-gaussian-process-noise",
        "--no-mpi-threads-disable",
    ]


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    options = options_of(
        tmp_path / "f", WHOLE, "--gloo", "--num-nccl-streams", "8", "--cache-capacity", "100"
    )
    assert not options.mpi
    assert options.settings["PERSEUS_ALLREDUCE_STREAMS"] == "8"
    assert options.settings["HOROVOD_CACHE_CAPACITY"] == "100"
    assert options.settings["PERSEUS_TIMELINE"] == "timeline.json"


def test_what_is_empty_says_nothing(tmp_path: Path) -> None:
    for text in ("", "params:\n", "logging:\n  level:\n"):
        options = options_of(tmp_path / "f", text)
        assert (options.settings, options.notes, options.mpi) == ({}, [], False)


def test_an_unknown_name_is_said(tmp_path: Path) -> None:
    path = tmp_path / "f"
    options = options_of(path, "params:\n  fusion: 3\nelastic:\n  x: 1\n")
    assert options.notes == [
        f"{path}: params.fusion changes nothing: there is no such setting",
        f"{path}: elastic changes nothing: there is no such section",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("controller: jsrun", "controller is 'jsrun'; it takes gloo or mpi"),
        ("- a\n- b\n", "the file holds ['a', 'b'], not settings by name"),
        ("params: 3", "params holds 3, not settings by name"),
        ("autotune:\n  enabled: 1", "autotune.enabled is 1; it takes true or false"),
        ("logging:\n  level: [a]", "logging.level is ['a']; it takes one value"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_understood_is_an_error(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert cli.main(["-np", "1", "--config-file", str(path), "true"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert message in error


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot read config file '/no/such': No such file"):
        read_config("/no/such")


def test_without_pyyaml_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "f").write_text(WHOLE)
    assert cli.main(["-np", "1", "--config-file", str(tmp_path / "f"), "true"]) == 2
    assert "PyYAML is not installed: pip install pyyaml" in capsys.readouterr().err


def test_ranks_have_the_settings_of_the_file(run_ranks: RunRanks, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("library_options:\n  num_nccl_streams: 3\n")
    script = """
import perseus_core
perseus_core.init()
print({s.name: s.value for s in perseus_core.settings()}["PERSEUS_ALLREDUCE_STREAMS"])
"""
    result = run_ranks(2, script, options=("--config-file", str(config)))
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:3", "[1]<stdout>:3"], result.stderr
