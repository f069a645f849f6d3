"""Hosts for the tests; where the machine does not allow network namespaces, the tests skip."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from netlab import Hosts, netlab
from slurm import Slurm, run_slurm
from sshd import SshHosts, serve_ssh


@pytest.fixture(scope="session")
def lab() -> Iterator[None]:
    """Four hosts."""
    if shutil.which("ip") is None:
        pytest.skip("the program ip (package iproute2) is missing")
    allowed = subprocess.run(
        ["ip", "netns", "add", "perseus-probe"], capture_output=True, text=True
    )
    if allowed.returncode != 0:
        pytest.skip(f"network namespaces are not allowed here: {allowed.stderr.strip()}")
    subprocess.run(["ip", "netns", "delete", "perseus-probe"], check=True)
    netlab("down")
    netlab("up", "4")
    yield
    netlab("down")


@pytest.fixture
def hosts(lab: None, tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


@pytest.fixture(scope="module")
def ssh_hosts(lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with serve_ssh(tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def slurm(lab: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with run_slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
