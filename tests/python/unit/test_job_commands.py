"""What does not go with `perseusrun --drain`, `--resume` and `--end` is refused, and named."""

from __future__ import annotations

import sys

import pytest

from perseus.run import cli

ENDS = "--end ends a job, and "
RESUMES = "--resume takes a job over, with the options that it has, and "
DRAINS = "--drain lets a host of a job go, and "


def refusal(arguments: list[str] | None, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2
    return capsys.readouterr().err.rstrip("\n").rpartition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--drain", "localhost", "train.py"], "takes no program"),
        (["--job", "1"], "give --drain HOST, too"),
        (["--drain", "localhost", "--job", "0"], "0 is not above 0"),
        (["--resume", "4", "train.py"], "--resume JOB is for a job that runs already"),
        (["--end", "4", "train.py"], "--end JOB is for a job that runs already"),
        (["--resume", "4", "--end", "4"], f"{RESUMES}--end ends a job; give one"),
        (["--drain", "a", "--resume", "4"], f"{DRAINS}--resume takes a job over, with the "),
        (["--drain", "a", "--resume"], f"{DRAINS}--resume takes a job over, with the "),
        (["--drain", "a", "--end", "4"], f"{DRAINS}--end ends a job; give one"),
        (["--resume", "train.py"], "'train.py' is not a whole number"),
        (["--resume", "4", "--job", "4"], "give --drain HOST, too"),
    ],
)
def test_commands_that_contradict_each_other(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in refusal(arguments, capsys)


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("-np", ["2"]),
        ("--num-proc=2", []),
        ("-H", ["a:2"]),
        ("--hostfile=hosts", []),
        ("--min-np", ["1"]),
        ("--max-np", ["1"]),
        ("--host-discovery-script", ["./hosts.sh"]),
        ("--grace", ["10"]),  # the default
        ("-p", ["22"]),
        ("-i", ["key"]),
        ("--streams", ["2"]),
        ("--no-stall-check", []),
        ("--verbose", []),
        ("--if-killed", ["end"]),
        ("--disable-cache", []),
    ],
)
@pytest.mark.parametrize(
    ("command", "does"),
    [
        (["--drain", "a", "--job", "1"], DRAINS),
        (["--resume", "4"], RESUMES),
        (["--resume"], RESUMES),
        (["--end", "4"], ENDS),
    ],
)
def test_options_without_an_effect(
    command: list[str],
    does: str,
    flag: str,
    values: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = flag.partition("=")[0]
    for arguments in ([*command, flag, *values], [flag, *values, *command]):
        said = refusal(arguments, capsys)
        assert said.endswith(f"{does}{name} has no effect on that; leave it out")


def test_a_value_beside_its_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["perseusrun", "--resume=4", "-p22"])
    assert refusal(None, capsys).endswith("and -p has no effect on that; leave it out")
