"""Tests hosts, the environment, and what starts jobs, in the drop-in's part of horovod.runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from perseus.dropin.runner import _HorovodArgs, launch
from perseus.dropin.runner.common.util import codec, config_parser, env, hosts
from perseus.dropin.runner.common.util.hosts import HostInfo, SlotInfo


def test_hosts_are_parsed() -> None:
    assert hosts.parse_hosts("a:2,b:3") == [HostInfo("a", 2), HostInfo("b", 3)]
    assert HostInfo.from_string("a:2") == HostInfo("a", 2)
    assert hosts.parse_hosts_and_slots("a:2,b:3") == (["a", "b"], {"a": 2, "b": 3})


def test_a_hostfile_is_read(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb slots=3\n")
    assert hosts.parse_host_files(str(tmp_path / "hosts")) == "a:2,b:3"


def test_ranks_fill_the_hosts_in_order() -> None:
    slots = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:1"), 3)
    assert slots == [
        SlotInfo("a", rank=0, local_rank=0, cross_rank=0, size=3, local_size=2, cross_size=2),
        SlotInfo("a", rank=1, local_rank=1, cross_rank=0, size=3, local_size=2, cross_size=1),
        SlotInfo("b", rank=2, local_rank=0, cross_rank=1, size=3, local_size=1, cross_size=2),
    ]
    assert slots[1].to_response_string() == "1,3,1,2,0,1"


@pytest.mark.parametrize(("least", "most", "size"), [(1, None, 5), (1, 2, 2), (2, 9, 5), (5, 5, 5)])
def test_as_many_ranks_as_fit_between_the_bounds(least: int, most: int | None, size: int) -> None:
    found = hosts.get_host_assignments(hosts.parse_hosts("a:2,b:3"), least, most)
    assert [slot.rank for slot in found] == list(range(size))
    assert {slot.size for slot in found} == {size}


def test_too_few_slots_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 ranks do not fit on 2 slots"):
        hosts.get_host_assignments(hosts.parse_hosts("a:2"), 3)


@pytest.mark.parametrize("prefixes", [("HOROVOD_", ""), ("OMPI_", "COMM_WORLD_"), ("PMI_", "")])
def test_rank_and_size_are_known_before_init(
    prefixes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert env.get_env_rank_and_size() == (0, 1)
    for name, value in (("RANK", "3"), ("SIZE", "4")):
        monkeypatch.setenv("".join(prefixes) + name, value)
    assert env.get_env_rank_and_size() == (3, 4)


def test_what_describes_this_machine_is_not_exported() -> None:
    assert env.is_exportable("PATH")
    assert not env.is_exportable("BASH_FUNC_x%%")
    assert not env.is_exportable("OLDPWD")


class TestConfiguration:
    CONFIG: ClassVar[dict[str, Any]] = {
        "controller": "mpi",
        "params": {"fusion_threshold_mb": 32, "hierarchical_allreduce": True, "cycle_time_ms": 5},
        "autotune": {"enabled": True, "log_file": "log"},
        "timeline": {"filename": "t.json"},
        "stall_check": {"enabled": False, "warning_time_seconds": 9},
        "logging": {"with_timestamp": True},
        "library_options": None,
    }

    def test_a_file_s_values_become_variables_unless_flags_override_them(self) -> None:
        args = _HorovodArgs()
        args.cycle_time_ms = 7
        config_parser.set_args_from_config(args, self.CONFIG, {"cycle_time_ms"})
        config_parser.validate_config_args(args)
        assert args.use_mpi and not args.use_gloo
        assert config_parser.set_env_from_args({"X": "1"}, args) == {
            "X": "1",
            "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
            "HOROVOD_CYCLE_TIME": "7",
            "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": "log",
            "HOROVOD_TIMELINE": "t.json",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "9",
            "HOROVOD_LOG_HIDE_TIME": "0",
        }

    def test_nothing_is_set_that_has_no_effect(self) -> None:
        args = _HorovodArgs()
        args.autotune_log_file = "log"
        args.timeline_mark_cycles = True
        args.tcp_flag = True
        assert config_parser.set_env_from_args({}, args) == {"NCCL_IB_DISABLE": "1"}

    @pytest.mark.parametrize(
        ("name", "value"), [("cache_capacity", -1), ("autotune_gaussian_process_noise", 1.5)]
    )
    def test_a_value_out_of_range_is_an_error(self, name: str, value: float) -> None:
        args = _HorovodArgs()
        setattr(args, name, value)
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be"):
            config_parser.validate_config_args(args)

    def test_an_unknown_controller_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="controller is slurm; it must be gloo or mpi"):
            config_parser.set_args_from_config(_HorovodArgs(), {"controller": "slurm"}, set())


def test_objects_go_through_text() -> None:
    encoded = codec.dumps_base64(lambda x: x + 1)
    assert isinstance(encoded, str)
    assert codec.loads_base64(encoded)(1) == 2
    assert isinstance(codec.dumps_base64([1], to_ascii=False), bytes)


def test_horovodrun_from_python(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["horovodrun", "-np", "2", "sh", "-c", "echo $HOROVOD_RANK"])
    assert launch.run_commandline() == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0]<stdout>:0", "[1]<stdout>:1"]
    launch.check_build(False)
    assert "MPI" in capfd.readouterr().out
    monkeypatch.setattr("sys.argv", ["horovodrun", "-np", "1", "sh", "-c", "exit 3"])
    assert launch.run_commandline() == 3


def test_a_launch_whose_arguments_are_attributes(capfd: pytest.CaptureFixture[str]) -> None:
    args = _HorovodArgs()
    args.num_proc = 2
    args.timeline_mark_cycles = True
    args.nics = {"lo"}
    args.command = [
        "sh",
        "-c",
        "echo $PERSEUS_RANK $PERSEUS_TIMELINE_MARK_CYCLES $PERSEUS_INTERFACES",
    ]
    assert launch._run(args) is None
    assert sorted(capfd.readouterr().out.splitlines()) == [
        "[0]<stdout>:0 1 lo",
        "[1]<stdout>:1 1 lo",
    ]
    args.command = ["sh", "-c", "exit 3"]
    with pytest.raises(RuntimeError, match="the job ended with status 3"):
        launch._run(args)


def test_a_launch_of_a_function() -> None:
    args = _HorovodArgs()
    args.num_proc = 2
    args.use_gloo = True
    args.run_func = lambda: __import__("os").environ["PERSEUS_RANK"]
    assert launch._run(args) == ["0", "1"]


def test_a_launch_that_is_refused() -> None:
    args = _HorovodArgs()
    args.command = ["true"]
    args.min_num_proc = 3
    with pytest.raises(ValueError, match="--min-np is 3; it must be at most -np, which is 1"):
        launch._run(args)


@pytest.mark.parametrize(
    ("asked", "gloo"), [((), True), ((True, None), True), ((None, True), False)], ids=str
)
def test_ranks_meet_without_mpi_unless_asked(asked: tuple[bool | None, ...], gloo: bool) -> None:
    assert launch.is_gloo_used(*asked) is gloo
