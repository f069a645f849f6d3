"""perseus.run.run, and Horovod's horovod.run under its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perseus.run
from perseus.run import api
from perseus.run.hosts import Host
from perseus.run.start import Request


def test_function_runs_on_every_rank_and_results_come_in_order() -> None:
    def place(base: int, *, factor: int) -> tuple[int, int]:
        import perseus_core

        perseus_core.init()
        return base + factor * perseus_core.rank(), perseus_core.size()

    results = perseus.run.run(place, (100,), {"factor": 2}, num_proc=3)
    assert results == [(100, 3), (102, 3), (104, 3)]


def test_one_rank_unless_said_otherwise() -> None:
    assert perseus.run.run(os.getpid, hosts="localhost:4") != [os.getpid()]


def test_a_large_argument_and_a_large_result_arrive() -> None:
    data = os.urandom(3 << 20)
    assert perseus.run.run(lambda given: given[::-1], (data,), num_proc=2) == [data[::-1]] * 2


def test_a_function_that_raises_is_an_error_naming_the_rank() -> None:
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(RuntimeError, match="rank 0 on host localhost exited with code 1"):
        perseus.run.run(fail)


INTERRUPTED = """
import os, signal, time
import perseus


def interrupt(launcher):
    if os.environ["PERSEUS_RANK"] == "0":
        os.kill(launcher, signal.SIGINT)
    time.sleep(60)


if __name__ == "__main__":
    try:
        perseus.run.run(interrupt, (os.getpid(),), num_proc=2)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_the_ranks_run_in_the_python_that_is_named(tmp_path: Path) -> None:
    python = tmp_path / "my-python"
    python.write_text(f'#!/bin/sh\nTHROUGH=me exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    result = perseus.run.run(lambda: os.environ["THROUGH"], executable=str(python))
    assert result == ["me"]


def test_ranks_get_more_environment() -> None:
    result = perseus.run.run(lambda: os.environ["WORDS"], environment={"WORDS": "two words"})
    assert result == ["two words"]


@pytest.fixture
def request_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what a call of run would start."""

    class Started(Exception):
        pass

    def start(request: Request) -> None:
        raise Started(request)

    monkeypatch.setattr(api, "start", start)

    def call(**arguments: Any) -> Request:
        with pytest.raises(Started) as started:
            perseus.run.run(print, **arguments)
        request: Request = started.value.args[0]
        return request

    return call


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({"num_proc": 3}, "size", 3),
        ({"hosts": "a:2,b"}, "hosts", [Host("a", 2), Host("b", 1)]),
        ({"start_timeout": 60}, "start_timeout", 60),
        ({"ssh_port": 2222}, "ssh_port", 2222),
        ({"ssh_identity_file": "key"}, "ssh_identity_file", "key"),
        ({"output_filename": "logs"}, "output_folder", "logs"),
        ({"verbose": 2}, "verbose", True),
        ({"grace": 0.5}, "grace", 0.5),
        ({"use_mpi": True}, "mpi", True),
        ({"use_gloo": True}, "mpi", False),
        ({"use_mpi": True, "mpi_args": "-x A"}, "mpi_args", "-x A"),
        ({"network_interfaces": "eth0,eth1"}, "settings", {"PERSEUS_INTERFACES": "eth0,eth1"}),
        ({"executable": "python7"}, "command", ["python7", "-m", "perseus.run.task"]),
    ],
)
def test_an_argument_does_its_work(
    arguments: dict[str, Any],
    field: str,
    value: object,
    request_of: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert getattr(request_of(**arguments), field) == value
    assert capsys.readouterr().err == ""


def test_a_hostfile_names_the_hosts(request_of: Any, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\n")
    assert request_of(hostfile=str(tmp_path / "hosts")).hosts == [Host("a", 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"disable_cache": True}, "disable_cache changes nothing: nothing that is found out"),
        ({"mpi_args": "-q"}, "mpi_args changes nothing: it is for mpirun, which starts no ranks"),
    ],
)
def test_an_argument_without_meaning_says_why(
    arguments: dict[str, Any], message: str, request_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    request_of(**arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"perseusrun: {message}")


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [("np", "num_proc", 3), ("network_interface", "network_interfaces", "eth0")],
)
def test_a_deprecated_name_is_the_new_one(
    old: str, new: str, value: object, request_of: Any
) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated; it is called {new}"):
        assert request_of(**{old: value}) == request_of(**{new: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hosts": "a:1", "hostfile": "f"}, "hosts and hostfile exclude each other"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi exclude each other"),
        ({"num_proc": 2, "np": 3}, "np=3 and num_proc=2: both name the same"),
        ({"grace": -1}, r"grace is -1; it must be from 0 to 86400 \(seconds\)"),
        ({"num_proc": 0}, "a job needs at least one rank, not 0"),
        ({"num_proc": 3, "hosts": "a:2"}, "3 ranks do not fit on 2 slots"),
        ({"min_num_proc": 3, "num_proc": 2}, "min_num_proc is 3; it must be at most num_proc"),
        ({"max_num_proc": 1, "num_proc": 2}, "num_proc is 2; it must be at most max_num_proc"),
        ({"host_discovery_script": "/no/script"}, "host_discovery_script is '/no/script'"),
        (
            {"max_num_proc": 2, "use_mpi": True},
            "use_mpi: mpirun ends a job when one of its ranks fails",
        ),
        *[
            ({name: value}, f"{name} is .*; it must be left out unless host_discovery_script")
            for name, value in {"slots": 2, "reset_limit": 3, "cooldown_range": (10, 100)}.items()
        ],
    ],
)
def test_wrong_arguments_are_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        perseus.run.run(print, **arguments)


def test_a_forked_child_that_returns_does_not_speak_for_its_rank() -> None:
    def fork_and_return() -> str:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return "child" if child == 0 else "rank"

    assert perseus.run.run(fork_and_return) == ["rank"]
