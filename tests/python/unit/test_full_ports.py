"""Tests jobs where all ports are taken that the system would assign."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from standin_mpirun import write_mpirun

from perseus.run import free_port

#: Runs its arguments in a network of their own, where the system has ten ports to assign, at all of
#: which somebody listens.
FULL = """
import ctypes, fcntl, socket, struct, subprocess, sys
if ctypes.CDLL(None).unshare(0x40000000) != 0: sys.exit(77)
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("40000 40009")
held = [socket.create_server(("", port)) for port in range(40000, 40010)]
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
RANK = """
import numpy as np, perseus_core as core
core.init()
total = core.allreduce(np.ones(300000, np.float32), name="a", op=core.ReduceOp.SUM)
print("met", core.rank(), total[0], flush=True)
core.shutdown()
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network")


def run_in_full_network(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FULL, *command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


@as_root
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_job_of_perseusrun_starts(transport: str) -> None:
    command = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, "-c", RANK]
    result = run_in_full_network(command, PERSEUS_TRANSPORT=transport)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("met") == 2


@as_root
def test_agents_under_mpirun_reach_their_launcher(tmp_path: Path) -> None:
    write_mpirun(tmp_path, "")
    command = [sys.executable, "-m", "perseus.run", "--mpi", "-np", "2", "echo", "met"]
    result = run_in_full_network(command, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("met") == 2


#: Starts two ranks as torchrun does.
BOTH = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "RANK": rank})
         for rank in "01"]
sys.exit(sum(rank.wait() for rank in ranks))
"""


@as_root
@pytest.mark.parametrize("several", [{}, {"PERSEUS_SECRET": "ab" * 32, "LOCAL_WORLD_SIZE": "1"}])
def test_ranks_of_torchrun_meet(several: Mapping[str, str]) -> None:
    variables = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "39998",  # so that all four known ports are taken
        **several,
    }
    result = run_in_full_network([sys.executable, "-c", BOTH, RANK], **variables)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("met") == 2


def test_where_no_port_is_free_the_error_says_how_to_find_who_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def full(address: tuple[str, int], **_: object) -> socket.socket:
        tried.append(address[1])
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket, "create_server", full)
    monkeypatch.setattr(free_port, "assigned_ports", lambda: range(2000, 65536))
    with pytest.raises(OSError, match=r"no port of 127\.0\.0\.1 is free.*ss -ltnp"):
        free_port.listen_anywhere("127.0.0.1")
    assert sorted(tried) == [0, *range(1024, 2000)]
