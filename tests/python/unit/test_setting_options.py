from __future__ import annotations

import argparse
import re

import pytest
from conftest import RunRanks

import perseus_core
from perseus.run import cli
from perseus.run.environment import start_timeout
from perseus.run.setting_options import SETTING_OPTIONS


def parse(*arguments: str) -> dict[str, str]:
    settings: dict[str, str] = cli.make_parser().parse_args([*arguments, "true"]).settings
    return settings


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["--fusion-threshold-mb", "8"], {"PERSEUS_ALLREDUCE_FUSION": "8"}),
        (["--num-nccl-streams=2"], {"PERSEUS_ALLREDUCE_STREAMS": "2"}),
        (["--timeline-filename", "t.json"], {"PERSEUS_TIMELINE": "t.json"}),
        (["--hierarchical-allreduce"], {"PERSEUS_ALLREDUCE_MODE": "hierarchical"}),
        (["--no-stall-check"], {"PERSEUS_STALL_CHECK_DISABLE": "1"}),
        (["--log-level", "debug"], {"PERSEUS_LOG_LEVEL": "debug"}),
        (["--network-interfaces", "eth0,eth1"], {"PERSEUS_INTERFACES": "eth0,eth1"}),
        (
            ["--network-interface", "eth0", "--network-interface", "eth1"],
            {"PERSEUS_INTERFACES": "eth0,eth1"},
        ),
        (
            ["--cache-capacity", "0"],
            {"PERSEUS_CACHE_CAPACITY": "", "HOROVOD_CACHE_CAPACITY": "0"},
        ),
        (["--gloo"], {}),
    ],
)
def test_flags_of_horovodrun_set_settings(arguments: list[str], settings: dict[str, str]) -> None:
    assert parse(*arguments) == settings


def test_the_launcher_has_the_default_of_the_table() -> None:
    (default,) = (s.default for s in perseus_core.settings() if s.name == "PERSEUS_START_TIMEOUT")
    assert start_timeout({}) == int(default)


def test_flags_refuse_what_the_ranks_would() -> None:
    ranges = {setting.name: setting.range for setting in perseus_core.settings()}
    for option in SETTING_OPTIONS:
        limits = re.match(r"([\d.]+) \.\. ([\d.]+)", ranges[option.setting])
        if option.value is not None or option.alias or limits is None:
            continue  # the engine moves an alias's number into its range
        low, high = map(int, limits.groups())
        assert [option.check(str(edge)) for edge in (low, high)] == [str(low), str(high)]
        for beyond in (low - 1, high + 1):
            with pytest.raises(argparse.ArgumentTypeError):
                option.check(str(beyond))
    levels = next(option for option in SETTING_OPTIONS if option.flags == ("--log-level",))
    for level in ranges["PERSEUS_LOG_LEVEL"].split(", "):
        assert levels.check(level.upper()) == level.upper()


def test_the_last_of_two_flags_wins() -> None:
    assert parse("--stall-check", "--no-stall-check") == {"PERSEUS_STALL_CHECK_DISABLE": "1"}


def test_flags_do_not_leak_into_the_next_parse() -> None:
    parser = cli.make_parser()
    parser.parse_args(["--log-level", "info", "true"])
    assert parser.parse_args(["true"]).settings == {}


def test_flags_after_the_command_belong_to_the_command() -> None:
    options = cli.make_parser().parse_args(["-np", "2", "python", "train.py", "-np", "8", "--mpi"])
    assert options.num_proc == 2
    assert not options.mpi
    assert options.command == ["python", "train.py", "-np", "8", "--mpi"]


def test_a_flag_without_meaning_says_why() -> None:
    options = cli.make_parser().parse_args(["--cycle-time-ms", "5", "true"])
    assert options.notes == [
        "--cycle-time-ms changes nothing: agreement is driven by events; there is no cycle to time"
    ]


def test_a_cache_that_horovod_turns_off_does_not_end_the_job(run_ranks: RunRanks) -> None:
    script = "import perseus_core; perseus_core.init()"
    result = run_ranks(1, script, options=("--cache-capacity", "0"))
    assert result.returncode == 0, result.stderr
    assert "HOROVOD_CACHE_CAPACITY='0' is out of the range" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "2"], "there is nothing to run"),
        (["true"], "say how many ranks to start"),
        (["-np", "0", "true"], "0 is not above 0"),
        (["-np", "2", "-H", "a:1", "--hostfile", "f", "true"], "not allowed with"),
        (["-np", "2", "--mpi", "--gloo", "true"], "not allowed with"),
        (["--cycle-time-ms", "-1"], "argument --cycle-time-ms: -1 is not a number from 0 on"),
        (["--cycle-time-ms", "nan"], "argument --cycle-time-ms: nan is not a number from 0 on"),
        (["--cycle-time-ms", "fast"], "argument --cycle-time-ms: 'fast' is not a number"),
        (["--autotune-warmup-samples=1.5"], "'1.5' is not a whole number"),
        (["--autotune-steps-per-sample=-1"], "-1 is not a whole number from 0 on"),
        (
            ["--autotune-gaussian-process-noise", "1.5"],
            "argument --autotune-gaussian-process-noise: 1.5 is not a number from 0 to 1",
        ),
        (
            ["--fusion-threshold-mb", "-3"],
            "argument --fusion-threshold-mb: -3 is not a number from 0 to 4096",
        ),
        (["--cache-capacity=-1"], "argument --cache-capacity: -1 is not a whole number"),
        (["--streams", "65"], "65 is not a whole number from 1 to 64"),
        (["--stall-check-warning-time-seconds=-1"], "time-seconds: -1 is not a whole number"),
        (["--gloo-timeout-seconds", "soon"], "--gloo-timeout-seconds: 'soon' is not a whole"),
        (
            ["--log-level", "bogus"],
            "argument --log-level: 'bogus' is none of trace, debug, info, warning, error, fatal",
        ),
    ],
)
def test_wrong_usage_is_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_too_many_ranks_for_the_slots_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-np", "3", "-H", "localhost:2", "true"]) == 2
    assert "3 ranks do not fit on 2 slots (localhost:2)" in capsys.readouterr().err
