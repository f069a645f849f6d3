"""SIGUSR1 and SIGUSR2, with which batch systems warn a job: the ranks get them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from test_mpi import PerseusrunMpi, with_mpirun  # noqa: F401

#: Says that it is ready, and ends with the first signal that it gets.
WAITS = """
import os, signal, sys
usual = (signal.SIGUSR1, signal.SIGUSR2)
signal.pthread_sigmask(signal.SIG_BLOCK, usual)
print("ready", flush=True)
print(signal.sigwait(usual).name, flush=True)
"""
RANKS = [sys.executable, "-S", "-c", WAITS]


def get_signal(command: list[str], number: int) -> None:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout and launcher.stderr
        ready = {launcher.stdout.readline() for _ in range(2)}
        assert ready == {"[0]<stdout>:ready\n", "[1]<stdout>:ready\n"}
        launcher.send_signal(number)
        name = signal.Signals(number).name
        assert sorted(launcher.stdout) == [f"[{rank}]<stdout>:{name}\n" for rank in range(2)]
        assert launcher.wait(timeout=30) == 0
        assert launcher.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_every_rank_gets_it_and_the_launcher_goes_on(number: int) -> None:
    get_signal([sys.executable, "-m", "perseus.run", "-np", "2", "--quiet", *RANKS], number)


def test_ranks_under_mpirun_get_it(with_mpirun: PerseusrunMpi) -> None:  # noqa: F811
    get_signal(with_mpirun("-np", "2", "--quiet", *RANKS), signal.SIGUSR1)


def test_a_rank_that_does_not_handle_it_has_failed() -> None:
    command = [sys.executable, "-m", "perseus.run", "-np", "1", "sh", "-c", "echo ready; sleep 100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        assert launcher.stdout and launcher.stderr
        launcher.stdout.readline()
        launcher.send_signal(signal.SIGUSR1)
        assert b"rank 0 on host localhost was killed by SIGUSR1" in launcher.stderr.read()
        assert launcher.wait(timeout=30) == 128 + signal.SIGUSR1
