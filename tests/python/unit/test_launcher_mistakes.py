"""More mistakes that perseusrun finds before it starts anything: one line each, no traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

PROGRAM = "print('started')\n"


def perseusrun(
    arguments: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perseus.run", *arguments],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_refused(result: subprocess.CompletedProcess[str], message: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert message in lines[-1], result.stderr
    assert all(line.startswith(("perseusrun: ", "usage: ")) for line in lines), result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script, a program that is not executable, and one without interpreter."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "bad.sh").write_text("#!/no/such/shell\n")
    (tmp_path / "bad.sh").chmod(0o755)
    (tmp_path / "hosts").write_bytes(b"\0\1\2")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian.py"], "there is no file trian.py; did you mean train.py?"),
        (["python", "trian.py"], "there is no file trian.py; did you mean train.py?"),
        (["python", "-u", "-W", "error", "trian.py"], "there is no file trian.py"),
        (["no-such-program"], "there is no program no-such-program on PATH"),
        (["python9", "train.py"], f"this perseusrun belongs to {sys.executable}"),
        (["./rn.sh"], "there is no file ./rn.sh; did you mean ./run.sh?"),
        (["./run.sh"], "./run.sh is not executable; run `chmod +x ./run.sh`"),
        (["run.sh"], "there is no program run.sh on PATH; the file here is ./run.sh"),
        (["./bad.sh"], "./bad.sh is run by /no/such/shell, and there is no such file"),
        (["."], ". is a folder; it must be a program"),
        ([""], "the command begins with an empty word"),
        (["-H", ",", "train.py"], "',' names no host"),
        (["--hostfile", ".", "train.py"], "cannot read hostfile .: Is a directory"),
        (["--hostfile", "hosts", "train.py"], "hostfile hosts is not a text file"),
        (["--config-file", ".", "train.py"], "cannot read config file '.': Is a directory"),
        (["--config-file", "none", "train.py"], "cannot read config file 'none': No such file"),
        (["--output-filename", "train.py/a", "train.py"], "cannot be made: Not a directory"),
        (["--timeline-filename", "", "train.py"], "argument --timeline-filename: '' is empty"),
        (["--network-interfaces", "nope", "train.py"], "'nope', which does not exist here"),
        (["--ssh-port", "65536", "train.py"], "'65536' is not a port from 1 to 65535"),
        (["-i", "nokey", "-H", "192.0.2.1:2", "train.py"], "no identity file nokey for ssh"),
        (["-np", "-2", "train.py"], "-2 is not above 0"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    folder: Path, arguments: list[str], message: str
) -> None:
    given = arguments if arguments[0] == "-np" else ["-np", "2", *arguments]
    assert_refused(perseusrun(given, folder=folder), message)


def test_flags_after_the_command_are_pointed_out(folder: Path) -> None:
    result = perseusrun(["python", "train.py", "-np", "2"], folder=folder)
    assert_refused(result, "-np comes after the program, and must come before it")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PERSEUS_THREAD_AFFINITY": "x"}, "PERSEUS_THREAD_AFFINITY='x' is malformed"),
        ({"PERSEUS_START_TIMEOUT": "soon"}, "PERSEUS_START_TIMEOUT='soon' is not a whole number"),
    ],
)
def test_a_malformed_setting_is_one_line(
    folder: Path, environment: dict[str, str], message: str
) -> None:
    assert_refused(
        perseusrun(["-np", "2", "train.py"], folder=folder, environment=environment), message
    )


def test_the_settings_of_the_job_itself_are_checked_too(folder: Path) -> None:
    arguments = ["-np", "2", "--thread-affinity", "first", "train.py"]
    assert_refused(perseusrun(arguments, folder=folder), "PERSEUS_THREAD_AFFINITY='first'")


def test_want_of_descriptors_is_one_line(folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "perseus.run", "-np", "2", "train.py"],
        cwd=folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode != 0
    assert "Too many open files" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("port", "message"), [("taken", "Address already in use"), ("abc", "must be a port from 1")]
)
def test_a_master_port_that_cannot_be_used_is_said(folder: Path, port: str, message: str) -> None:
    import socket

    with socket.create_server(("", 0)) as taken:
        text = str(taken.getsockname()[1]) if port == "taken" else port
        result = perseusrun(
            ["-np", "2", "train.py"], folder=folder, environment={"MASTER_PORT": text}
        )
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("perseusrun: MASTER_PORT is ") and message in line


def test_a_mistyped_setting_is_said_once(folder: Path) -> None:
    (folder / "init.py").write_text("import perseus_core; perseus_core.init(); print('well')\n")
    environment = {"PERSEUS_ALLREDUCE_STREAM": "3", "HOROVOD_CACHE_CAPACITY": "0"}
    result = perseusrun(["-np", "3", "init.py"], folder=folder, environment=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("well") == 3
    assert result.stderr.count("did you mean PERSEUS_ALLREDUCE_STREAMS?") == 1
    assert result.stderr.count("HOROVOD_CACHE_CAPACITY='0' is out of the range") == 1


def test_a_variable_that_is_no_text_is_no_mistake(folder: Path) -> None:
    odd = {"PERSEUS_SPIN_US": "1", "ODD": os.fsdecode(b"\xff")}
    result = perseusrun(["-np", "1", "train.py"], folder=folder, environment=odd)
    assert (result.returncode, result.stdout) == (0, "[0]<stdout>:started\n"), result.stderr


@pytest.mark.parametrize("arguments", [["--help", "settings"], ["--check-build"]])
def test_what_reads_the_settings_names_a_malformed_one(folder: Path, arguments: list[str]) -> None:
    result = perseusrun(arguments, folder=folder, environment={"PERSEUS_SPIN_US": "much"})
    assert "PERSEUS_SPIN_US='much' is not a whole number" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interrupt_before_the_ranks_start_is_no_traceback(folder: Path) -> None:
    """The Python that is asked whether it has Perseus interrupts perseusrun."""
    python = folder / "python"
    python.write_text("#!/bin/sh\nkill -INT $PPID; sleep 10\n")
    python.chmod(0o755)
    result = perseusrun(["-np", "1", "./python", "-c", "pass"], folder=folder)
    assert result.returncode == 130
    assert "Traceback" not in result.stderr
