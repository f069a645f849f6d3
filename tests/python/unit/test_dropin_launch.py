"""Tests the drop-in's horovod.runner.launch as programs use it to start elastic jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perseus.dropin.runner import arguments, launch
from perseus.dropin.runner.common.util.config_parser import set_env_from_args
from perseus.dropin.runner.elastic import driver


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> arguments.HorovodArgs:
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words])
    return launch.parse_args()


def test_flags_become_attributes_and_what_is_not_given_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = parsed(
        monkeypatch,
        *("-np", "2", "--min-np", "1", "--max-num-proc", "4", "-H", "a:2,b:2"),
        *("--cycle-time-ms", "1.5", "--fusion-threshold-mb", "8", "--no-autotune", "--verbose"),
        *("--blacklist-cooldown-range", "1", "2", "--log-level", "DEBUG", "-p", "2222"),
        *("python", "train.py", "-np", "3"),
    )
    assert (args.num_proc, args.min_num_proc, args.max_num_proc) == (2, 1, 4)
    assert (args.hosts, args.cycle_time_ms, args.ssh_port) == ("a:2,b:2", 1.5, 2222)
    assert (args.autotune, args.verbose, args.hierarchical_allreduce) == (False, True, None)
    assert args.cooldown_range == [1, 2]
    assert args.command == ["python", "train.py", "-np", "3"]
    assert args.run_func is None and args.slots is None
    assert set_env_from_args({}, args)["HOROVOD_FUSION_THRESHOLD"] == str(8 << 20)


def test_the_attributes_make_the_same_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--num-proc=2", "--reset-limit=3", "--hosts=a:2", "--log-level=DEBUG", "--gloo"]
    assert arguments.command_line(parsed(monkeypatch, *words)) == [
        *("--num-proc=2", "--reset-limit=3", "--hosts=a:2", "--log-level=DEBUG", "--gloo"),
    ]


def test_what_is_no_flag_of_horovodrun_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(monkeypatch, "-np", "two")
    assert "invalid int value: 'two'" in capsys.readouterr().err


class TestElastic:
    @pytest.fixture
    def look_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.01)

    def test_the_ranks_are_those_of_the_hosts_that_a_script_prints(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, look_often: None
    ) -> None:
        code = "import os; open(os.environ['HOROVOD_HOSTNAME'], 'a').write('here')"
        monkeypatch.chdir(tmp_path)
        args = parsed(
            monkeypatch,
            *("-np", "1", "--host-discovery-script", "echo localhost:1; echo 127.0.0.1:1"),
            *(sys.executable, "-c", code),
        )
        assert launch._run(args) is None
        assert (tmp_path / "localhost").read_text() == "here"

    def test_the_least_ranks_alone_make_a_job_elastic(
        self, monkeypatch: pytest.MonkeyPatch, look_often: None
    ) -> None:
        words = ("-np", "2", "--min-np", "1", "-H", "localhost:1,127.0.0.1:1")
        args = parsed(monkeypatch, *words, sys.executable, "-c", "raise SystemExit(3)")
        message = "one or more processes exited with non-zero status: too few ranks are left: 0 of"
        with pytest.raises(RuntimeError, match=message):
            launch._run(args)

    def test_a_function_gets_the_same_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def how_ranks_join() -> str:
            import os

            import perseus_core

            perseus_core.init()  # or the driver would take a slow one for a late one
            perseus_core.shutdown()
            return os.environ["PERSEUS_ELASTIC_JOIN"]

        args = arguments.HorovodArgs()
        args.num_proc, args.hosts = 2, "localhost:1,127.0.0.1:1"
        args.run_func = how_ranks_join
        for launched in (launch._run_elastic, launch._run):
            assert launched(args) == ["at_once"] * 2
            args.min_num_proc = 1

        monkeypatch.setattr(driver, "ELASTIC_TIMEOUT_SECS", 1)
        args.host_discovery_script, args.hosts = "echo localhost:1", None
        message = "non-zero status: after 1 s there are too few slots: 1; the job needs 2 to begin"
        with pytest.raises(RuntimeError, match=message):
            launch._run(args)

    def test_the_time_out_is_read_when_the_job_starts(
        self, monkeypatch: pytest.MonkeyPatch, look_often: None
    ) -> None:
        monkeypatch.setattr(driver, "ELASTIC_TIMEOUT_SECS", 1)
        words = ("-np", "2", "--host-discovery-script", "echo localhost:1")
        args = parsed(monkeypatch, *words, sys.executable, "-c", "pass")
        with pytest.raises(RuntimeError, match="there are too few slots: 1; the job needs 2"):
            launch._run_elastic(args)
