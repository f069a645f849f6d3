"""Tests what perseusrun's flags of elastic jobs ask for, and which combinations are refused."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perseus.elastic.arguments import ElasticArguments
from perseus.elastic.discovery import HostSource
from perseus.elastic.options import (
    ARGUMENTS,
    FLAGS,
    ElasticOptions,
    check,
    elastic_options,
    host_source,
    notes_about_elastic,
)
from perseus.elastic.slurm import SlurmSource
from perseus.elastic.sources import FixedSource, HostsFileSource, ScriptSource
from perseus.run.api import run
from perseus.run.cli import main, named_hosts
from perseus.run.hosts import Host
from perseus.run.options import make_parser


def asked(arguments: str, **environment: str) -> ElasticOptions | None:
    return elastic_options(make_parser().parse_args([*arguments.split(), "train"]), environment)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ./discover, which is executable, ./text, which is not, ./hosts and ./sub/.

    Nobody can run ./lost.
    """
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    for name, mode in (("discover", 0o755), ("text", 0o644), ("hosts", 0o644)):
        Path(name).write_text("#!/bin/sh\necho a:1\n" if name != "hosts" else "a:1\n")
        Path(name).chmod(mode)
    Path("lost").write_text("#!/no/such/sh -e\n")
    Path("lost").chmod(0o755)
    return tmp_path


def test_without_such_a_flag_a_job_is_not_elastic() -> None:
    assert asked("-np 2 -H a:1,b:1") is None


@pytest.mark.parametrize("arguments", ["-np 2 --min-np 1", "--min-np 1 -H a:1,b:1"])
def test_a_job_with_a_minimum_alone_leaves_out_slots(arguments: str) -> None:
    assert asked(arguments) == ElasticOptions(least=1, blacklist_by="slot")
    by_host = asked(f"{arguments} --blacklist-by host")
    assert by_host == ElasticOptions(least=1, blacklist_by="host")
    assert ElasticArguments(least=1).options(size=2, names_hosts="hosts", mpi=False) == (
        ElasticOptions(least=1, blacklist_by="slot")
    )


def test_hosts_that_stay_the_same_have_the_slots_of_the_ranks() -> None:
    hosts = [Host("a", 2), Host("b", 4)]
    asked_for = ElasticOptions(least=1)
    assert host_source(asked_for, hosts, 3, {}).find() == [Host("a", 2), Host("b", 1)]
    assert host_source(asked_for, [], 3, {}).find() == [Host("localhost", 3)]
    with_room = ElasticOptions(least=1, most=6)
    assert host_source(with_room, hosts, 3, {}).find() == hosts
    in_slurm = {"SLURM_JOB_NODELIST": "n[1-2]"}
    assert isinstance(host_source(asked_for, [], 3, in_slurm), FixedSource)


@pytest.mark.parametrize(("least", "size"), [(1, 3), (3, 2)])
def test_hosts_that_stay_the_same_have_slots_enough(least: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"3 ranks do not fit on 2 slots \(a:1, b:1\)"):
        host_source(ElasticOptions(least=least), [Host("a", 1), Host("b", 1)], size, {})


def test_what_is_not_given_has_a_default() -> None:
    assert asked("-np 2 --max-np 4") == ElasticOptions(
        least=2,
        most=4,
        script=None,
        watched_hostfile=None,
        slots_per_host=None,
        timeout=600,
        reset_limit=None,
        cooldown_range=None,
        blacklist_by="host",
        join="background",
    )


@pytest.mark.parametrize(("least", "most"), [("np", "np"), ("num-proc", "num-proc")])
def test_every_flag_in_each_spelling(least: str, most: str, in_folder: Path) -> None:
    rest = "--slots-per-host 4 --elastic-timeout 30 --reset-limit 0 --blacklist-cooldown-range 2 9"
    names = f"--host-discovery-script ./discover --min-{least} 1 --max-{most} 8"
    options = asked(
        f"-np 2 {names} {rest} --blacklist-by slot --join at-once --drain-signal SIGUSR2"
    )
    assert options == ElasticOptions(
        least=1,
        most=8,
        script="./discover",
        slots_per_host=4,
        timeout=30,
        reset_limit=0,
        cooldown_range=(2, 9),
        blacklist_by="slot",
        join="at_once",
        drain_signal=signal.SIGUSR2,
    )
    watched = asked(f"-np 2 --min-{least} 1 --watch-hostfile hosts --join background")
    assert watched == ElasticOptions(least=1, watched_hostfile="hosts")


def test_a_script_or_a_file_makes_a_job_elastic_without_a_maximum(in_folder: Path) -> None:
    assert asked("-np 2 --host-discovery-script ./discover") == ElasticOptions(
        least=2, script="./discover"
    )
    assert asked("--min-np 3 --watch-hostfile hosts") == ElasticOptions(
        least=3, watched_hostfile="hosts"
    )


def test_the_time_out_comes_from_the_flag_else_the_variable() -> None:
    arguments = "-np 2 --max-np 4"
    options = asked(arguments, HOROVOD_ELASTIC_TIMEOUT="20")
    assert options and options.timeout == 20
    options = asked(f"{arguments} --elastic-timeout 5", HOROVOD_ELASTIC_TIMEOUT="20")
    assert options and options.timeout == 5
    options = asked(arguments, HOROVOD_ELASTIC_TIMEOUT="")
    assert options and options.timeout == 600


@pytest.mark.parametrize("value", ["x", "0", "-1", "1.5"])
def test_a_malformed_variable_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=f"HOROVOD_ELASTIC_TIMEOUT is '{value}'; it must be a who"):
        asked("-np 2 --max-np 4", HOROVOD_ELASTIC_TIMEOUT=value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-np 2", "say how many ranks to start: -np N"),
        ("-np 2 --max-np 1", "-np is 2; it must be at most --max-np, which is 1"),
        ("--min-np 3 --max-np 2", "--min-np is 3; it must be at most --max-np, which is 2"),
        ("-np 2 --min-np 3 --max-np 4", "--min-np is 3; it must be at most -np, which is 2"),
        (
            "-np 1 --max-np 2 --mpi",
            "--mpi: mpirun ends a job when one of its ranks fails, and adds none",
        ),
        ("-np 1 --host-discovery-script ./none", "is './none'; there is no program ./none"),
        ("-np 1 --host-discovery-script ./text", "is './text'; it must be executable"),
        (
            "-np 1 --host-discovery-script ./lost",
            "is './lost'; its first line names /no/such/sh, w",
        ),
        ("-np 1 --host-discovery-script .", "is '.'; it must be a program, and not a folder"),
        ("-np 1 --host-discovery-script no-such", "is 'no-such'; there is no program no-such"),
        ("-np 1 --host-discovery-script=", "is ''; it must be a program"),
        ("-np 1 --watch-hostfile sub", "is 'sub'; it must be a file, and is a folder"),
        ("-np 1 --host-discovery-script '", "it must be a program, or a command of the shell: "),
        ("-np 1 --watch-hostfile none", "--watch-hostfile is 'none'; there is no such file"),
        (
            "-np 1 --host-discovery-script ./discover -H a:1",
            "--host-discovery-script and -H both name the hosts; give one",
        ),
        (
            "-np 1 --watch-hostfile hosts --hostfile hosts",
            "--watch-hostfile and --hostfile both name the hosts; give one",
        ),
        (
            "-np 1 --watch-hostfile hosts --host-discovery-script ./discover",
            "--host-discovery-script and --watch-hostfile both name the hosts; give one",
        ),
        (
            "-np 1 --max-np 2 --blacklist-cooldown-range 9 2",
            "--blacklist-cooldown-range is 9 2; it must be two numbers of seconds from 1 to 3600, "
            "the smaller first",
        ),
        ("-np 1 --max-np 2 --blacklist-cooldown-range 9 3601", "is 9 3601; it must be two numb"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: str, message: str, in_folder: Path
) -> None:
    with pytest.raises(ValueError) as error:
        asked(arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-np 0", "--max-np/--max-num-proc: 0 is not a whole number from 1 on"),
        ("--max-num-proc two", "--max-np/--max-num-proc: 'two' is not a whole number"),
        ("--slots-per-host 0", "--slots-per-host: 0 is not a whole number from 1 on"),
        ("--elastic-timeout 0", "--elastic-timeout: 0 is not a whole number from 1 on"),
        ("--reset-limit=-1", "--reset-limit: -1 is not a whole number from 0 on"),
        ("--blacklist-cooldown-range 5", "--blacklist-cooldown-range: expected 2 arguments"),
        ("--blacklist-cooldown-range 5 x", "--blacklist-cooldown-range: 'x' is not a whole numb"),
        ("--blacklist-by rank", "--blacklist-by: invalid choice: 'rank'"),
        ("--join later", "--join: invalid choice: 'later'"),
        ("--drain-signal SIGKILL", "--drain-signal: invalid choice: 'SIGKILL'"),
    ],
)
def test_a_malformed_value_is_refused_when_it_is_read(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        make_parser().parse_args(arguments.split())
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "script",
    ["./discover", "discover", "my script", "sh ./discover", "cd / && ls", "A=/x ls", "$HOME/x"],
)
def test_scripts_that_may_run_are_accepted(script: str, in_folder: Path) -> None:
    Path("my script").write_text("#!/bin/sh\n")
    Path("my script").chmod(0o755)
    check(ElasticOptions(least=1, script=script), size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ElasticOptions(least=3, most=2), "min_num_proc is 3; it must be at most max_num_proc, wh"),
        (ElasticOptions(least=0), "min_num_proc is 0; it must be at least 1"),
        (ElasticOptions(least=1, slots_per_host=0), "slots is 0; it must be at least 1"),
        (ElasticOptions(least=1, reset_limit=-1), "reset_limit is -1; it must be at least 0"),
        (ElasticOptions(least=1, cooldown_range=(0, 5)), "cooldown_range is 0 5; it must be two"),
        (ElasticOptions(least=1, script="./no"), "host_discovery_script is './no'; there is no"),
    ],
)
def test_errors_may_speak_of_arguments(options: ElasticOptions, message: str) -> None:
    with pytest.raises(ValueError) as error:
        check(options, size=None, names=ARGUMENTS)
    assert str(error.value).startswith(message)


def test_a_folder_is_named_in_a_command_too(in_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"--host-discovery-script is './sub -v'; ./sub is a fold"):
        check(ElasticOptions(least=1, script="./sub -v"), size=1)


def test_both_vocabularies_have_the_same_words() -> None:
    assert ARGUMENTS.keys() == FLAGS.keys()
    assert set(FLAGS.values()) <= make_parser()._option_string_actions.keys()
    for name in ElasticOptions.__dataclass_fields__:
        assert name in FLAGS or name in ("blacklist_by", "join", "drain_signal")


def test_flags_without_effect_are_noted() -> None:
    def notes(arguments: str) -> list[str]:
        return notes_about_elastic(make_parser().parse_args([*arguments.split(), "train"]))

    why = "changes nothing without --host-discovery-script, --watch-hostfile, --min-np or --max-np"
    assert notes("-np 2 --reset-limit 3 --join at-once") == [
        f"--reset-limit {why}",
        f"--join {why}",
    ]
    assert notes("-np 2") == notes("-np 2 --max-np 4 --reset-limit 3") == []
    assert notes("-np 2 --max-np 4 --slots-per-host 3") == [
        "--slots-per-host changes nothing without --host-discovery-script or --watch-hostfile"
    ]
    assert notes("-np 2 --watch-hostfile f --slots-per-host 3") == []


SLURM = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("options", "hosts", "environment", "kind", "found"),
    [
        (dict(script="echo a", slots_per_host=3), [], SLURM, ScriptSource, [Host("a", 3)]),
        (dict(watched_hostfile="hosts"), [], SLURM, HostsFileSource, [Host("a", 1)]),
        (dict(most=4), [Host("b", 4)], SLURM, FixedSource, [Host("b", 4)]),
        (dict(most=4), [], {}, FixedSource, [Host("localhost", 4)]),
        (dict(), [], {}, FixedSource, [Host("localhost", 2)]),
        (dict(most=4), [], SLURM, SlurmSource, [Host("n1", 2), Host("n2", 2)]),
    ],
)
def test_hosts_come_from_what_is_named(
    options: dict[str, object],
    hosts: list[Host],
    environment: dict[str, str],
    kind: Callable[..., HostSource],
    found: list[Host],
    in_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The list of nodes as it is: a sinfo without a controller would be an error.
    monkeypatch.setattr("perseus.elastic.slurm.shutil.which", lambda _: None)
    wanted = ElasticOptions(least=1, **options)  # type: ignore[arg-type]
    source = host_source(wanted, hosts, 2, environment)
    assert type(source) is kind
    assert source.find() == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"join": "at-once"}, "join is 'at-once'; it must be 'background' or 'at_once'"),
        ({"blacklist_by": "rank"}, "blacklist_by is 'rank'; it must be 'host' or 'slot'"),
        ({"join": "at_once"}, "join is at_once; it must be left out unless host_discovery_script,"),
        ({"elastic_timeout": 5}, "elastic_timeout is 5; it must be left out unless"),
        ({"elastic_timeout": 0, "max_num_proc": 2}, "elastic_timeout is 0; it must be at least 1"),
    ],
)
def test_arguments_of_run_that_do_not_go_together_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(print, **arguments)


@pytest.mark.parametrize("flag", ["-H a:1,a:1", "--hostfile twice"])
def test_an_elastic_job_refuses_a_host_that_is_named_twice(
    flag: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("twice").write_text("a:1\na:1\n")
    assert main(["-np", "2", "--max-np", "2", *flag.split(), "true"]) == 2
    assert "names 'a' 2 times; an elastic job needs each host once" in capsys.readouterr().err
    assert named_hosts(make_parser().parse_args(flag.split()), is_elastic=False) == [Host("a", 2)]


def test_so_does_run(in_folder: Path) -> None:
    with pytest.raises(ValueError, match="names 'a' 2 times; an elastic job needs each host once"):
        run(print, num_proc=2, max_num_proc=2, hosts="a:1,a:1")
