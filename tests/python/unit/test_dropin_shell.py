"""Tests the commands that horovod.runner.common.util runs for users, and how they end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perseus.dropin.runner.common.util import safe_shell_exec, tiny_shell_exec


def run(command: str, **options: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = safe_shell_exec.execute(command, stdout=out, stderr=err, **options)  # type: ignore[arg-type]
    return status, out.getvalue(), err.getvalue()


def test_status_and_output_are_the_command_s() -> None:
    assert run("echo a; echo b >&2; exit 3") == (3, "a\n", "b\n")
    assert run("kill -9 $$")[0] == 128 + signal.SIGKILL


def test_output_goes_to_our_streams_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert safe_shell_exec.execute("echo a; echo b >&2") == 0
    assert capsys.readouterr() == ("a\n", "b\n")


def test_lines_are_tagged_even_where_they_end_in_a_carriage_return() -> None:
    _, out, _ = run(r"printf 'a\nb\rc'", index=2)
    assert out == "[2]<stdout>:a\n[2]<stdout>:b\r[2]<stdout>:c"
    _, out, _ = run("echo a", index=0, prefix_output_with_timestamp=True)
    assert out.endswith("[0]<stdout>:a\n") and not out.startswith("[")


def test_a_character_may_come_in_two_pieces() -> None:
    assert run(r"printf '\303'; sleep 0.2; printf '\244'")[1] == "ä"


def test_the_environment_is_the_command_s_alone() -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONHOME": "/nowhere", "X": "1"}
    assert run('echo "$X $PYTHONHOME $HOME"', env=environment)[1] == "1 /nowhere \n"


def test_an_event_ends_the_command_and_what_it_has_started(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stop = threading.Event()

    def end_when_it_runs() -> None:
        fifo.read_text()
        stop.set()

    thread = threading.Thread(target=end_when_it_runs)
    thread.start()
    # The second process leads a session of its own.
    other = f'trap "echo ended; exit" TERM; : > {fifo}; while :; do sleep 0.05; done'
    status, out, _ = run(
        f"setsid sh -c '{other}' & wait",
        events=[threading.Event(), stop],
    )
    thread.join()
    assert (status, out) == (128 + signal.SIGTERM, "ended\n")


def test_the_command_ends_with_us(tmp_path: Path) -> None:
    """The command writes to a pipe that ends when nobody holds it any more."""
    code = """
import sys
from perseus.dropin.runner.common.util import safe_shell_exec
safe_shell_exec.execute("echo runs; exec sleep 1000", stdout=sys.stdout)
"""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, pass_fds=[write]
    ) as program:
        os.close(write)
        assert program.stdout
        assert program.stdout.readline() == "runs\n"
        program.kill()
        program.wait()
        assert os.read(read, 1) == b""
    os.close(read)


def test_output_and_status_in_one() -> None:
    output, status = tiny_shell_exec.execute("echo a; echo b >&2; exit 2")
    assert sorted(output) == sorted("a\nb\n") and status == 2
    assert tiny_shell_exec.execute("true", env={}) == ("", 0)
