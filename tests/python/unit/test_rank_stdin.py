"""perseusrun's stdin, which goes to rank 0."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from test_mpi import PerseusrunMpi, with_mpirun  # noqa: F401

LAUNCHER = [sys.executable, "-m", "perseus.run", "-np", "2", "--quiet"]
COUNTS = """
import os, sys
print(len(sys.stdin.buffer.read()), flush=True)
"""
COUNT = [sys.executable, "-S", "-c", COUNTS]
READ_BY_BOTH = ["[0]<stdout>:5000000", "[1]<stdout>:0"]


def test_rank_0_reads_all_of_a_pipe_and_the_others_nothing() -> None:
    done = subprocess.run([*LAUNCHER, *COUNT], input=b"x" * 5_000_000, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.decode().splitlines()) == READ_BY_BOTH


def test_rank_0_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5_000_000)
    with (tmp_path / "file").open("rb") as file:
        done = subprocess.run([*LAUNCHER, *COUNT], stdin=file, capture_output=True, timeout=60)
    assert sorted(done.stdout.decode().splitlines()) == READ_BY_BOTH


def test_rank_0_reads_it_under_mpirun_too(with_mpirun: PerseusrunMpi) -> None:  # noqa: F811
    command = with_mpirun("-np", "2", "--quiet", *COUNT)
    done = subprocess.run(command, input=b"x" * 5_000_000, capture_output=True, timeout=60)
    assert sorted(done.stdout.decode().splitlines()) == READ_BY_BOTH


@pytest.mark.parametrize("stdin", ["< /dev/null", "<&-"])
def test_an_empty_stdin_is_empty_for_the_ranks(stdin: str) -> None:
    command = ["sh", "-c", f'exec "$@" {stdin}', "sh", *LAUNCHER, *COUNT]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=60)
    assert sorted(done.stdout.split()) == [b"[0]<stdout>:0", b"[1]<stdout>:0"]


def test_lines_arrive_as_they_come() -> None:
    echo = [*LAUNCHER, "--only-rank", "0", "--no-tag", "cat"]
    with subprocess.Popen(echo, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdin and launcher.stdout
        for line in (b"one\n", b"two\n"):
            launcher.stdin.write(line)
            launcher.stdin.flush()
            assert launcher.stdout.readline() == line
        launcher.stdin.close()
        assert launcher.stdout.read() == b""
        assert launcher.wait(timeout=30) == 0


def test_what_rank_0_does_not_read_stays_in_the_pipe_and_ends_no_job() -> None:
    command = [*LAUNCHER, "--no-tag", "sh", "-c", "echo begun; exec sleep 2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdin and launcher.stdout
        launcher.stdout.readline()
        os.set_blocking(launcher.stdin.fileno(), False)
        written = 0
        with pytest.raises((BlockingIOError, BrokenPipeError)):
            while written < 64 << 20:
                try:
                    written += os.write(launcher.stdin.fileno(), b"x" * 65536)
                except BlockingIOError:
                    threading.Event().wait(0.05)
                    if launcher.poll() is not None:
                        raise
        assert written < 1 << 20
        assert launcher.wait(timeout=30) == 0


def test_a_rank_that_closes_its_stdin_ends_no_job() -> None:
    command = [*LAUNCHER, "--no-tag", "sh", "-c", "exec <&-; echo done; sleep 1"]
    yes = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    assert yes.stdout
    done = subprocess.run(command, stdin=yes.stdout, capture_output=True, timeout=60)
    yes.stdout.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, b"done\ndone\n", b"")
    assert yes.wait(timeout=30) == -signal.SIGPIPE


#: A shell with job control that runs a job in the background of its terminal, as `perseusrun &`.
IN_BACKGROUND = """
import os, signal, subprocess, sys
os.setsid()
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
log = open(sys.argv[1], "w")
job = subprocess.Popen(sys.argv[2:], stdout=log, stderr=log, process_group=0) \
    if sys.version_info >= (3, 11) else \
    subprocess.Popen(sys.argv[2:], stdout=log, stderr=log, preexec_fn=lambda: os.setpgid(0, 0))
os.write(1, b"started\\n")
_, status = os.waitpid(job.pid, os.WUNTRACED)
os.write(1, b"stopped\\n" if os.WIFSTOPPED(status) else b"ended\\n")
if os.WIFSTOPPED(status): job.kill()
"""


def test_a_launcher_in_the_background_of_a_terminal_is_not_stopped(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    log = tmp_path / "log"
    command = [sys.executable, "-c", IN_BACKGROUND, str(log), *LAUNCHER, "--no-tag", "sleep", "2"]
    shell = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE)
    assert shell.stdout
    assert shell.stdout.readline() == b"started\n"
    os.write(ours, b"for the shell\n")
    assert shell.stdout.readline() == b"ended\n"
    assert shell.wait(timeout=30) == 0
    assert log.read_text() == ""
    shell.stdout.close()
    assert os.read(theirs, 100) == b"for the shell\n"
    os.close(ours)
    os.close(theirs)


def test_a_launcher_in_the_foreground_of_a_terminal_reads_it() -> None:
    ours, theirs = pty.openpty()
    head = [*LAUNCHER, "--only-rank", "0", "--no-tag", "head", "-n", "1"]
    with subprocess.Popen(
        head, stdin=theirs, stdout=subprocess.PIPE, start_new_session=True
    ) as launcher:
        assert launcher.stdout
        os.write(ours, b"typed\n")
        assert launcher.stdout.read() == b"typed\n"
        assert launcher.wait(timeout=30) == 0
    os.close(ours)
    os.close(theirs)
