from __future__ import annotations

import pytest
from conftest import RunRanks

from perseus.run import cli


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
        (["-np", "2"], "there is no command to run"),
        (["true"], "say how many ranks to start"),
        (["-np", "0", "true"], "0 is not above 0"),
        (["-np", "2", "-H", "a:1", "--hostfile", "f", "true"], "not allowed with"),
        (["-np", "2", "--mpi", "--gloo", "true"], "not allowed with"),
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
