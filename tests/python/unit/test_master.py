"""Tests the variables for torch.distributed: RANK, WORLD_SIZE, MASTER_ADDR and the like."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping

import pytest
from conftest import RunRanks

from perseus.run.free_port import assigned_ports
from perseus.run.master import Master, address_of
from perseus.run.remote_shell import RemoteShell

PLACE = """
import os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR".split()
print(*[os.environ[name] for name in names])
"""
MEETS = """
import torch, torch.distributed as dist, perseus.torch
dist.init_process_group("BACKEND")
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(dist.get_rank(), dist.get_world_size(), total.tolist())
dist.destroy_process_group()
"""


def environment_of(environment: Mapping[str, str], **where: bool) -> dict[str, str]:
    where = {"here": True, "several_hosts": False, **where}
    return Master(environment, **where).environment("192.0.2.1")


def test_rank_0_can_listen_at_the_port() -> None:
    environment = environment_of({})
    assert environment["MASTER_ADDR"] == "192.0.2.1"
    with socket.create_server(("", int(environment["MASTER_PORT"]))):
        pass


def bound_ports() -> set[int]:
    """Returns the ports that others can see to be bound: sock_diag(7), since Linux 6.8."""
    bound_inactive = 13
    request = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 1 << bound_inactive)
    request += bytes(48)
    ports = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:
        diag.send(struct.pack("=IHHII", 16 + len(request), 20, 0x301, 1, 0) + request)
        while True:
            data = diag.recv(1 << 16)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind in (2, 3):  # an error, or the end
                    return ports
                ports.add(struct.unpack_from("!H", data, 20)[0])
                data = data[(length + 3) & ~3 :]


def test_nobody_can_see_the_port_before_rank_0_listens() -> None:
    master = Master({}, here=True, several_hosts=False)
    port = int(master.environment("192.0.2.1")["MASTER_PORT"])
    assert port not in bound_ports()
    assert port not in assigned_ports()
    assert master.note_on_stranger() is None


#: Rank 0 fails once somebody listens at the port that it was told.
BEATEN = """
import os, socket, sys, time
if os.environ["RANK"] == "0":
    print(os.environ["MASTER_PORT"], flush=True)
    while socket.socket().connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"]))) != 0:
        time.sleep(0.01)
    sys.exit(3)
time.sleep(30)
"""
LISTENS = """
import os, socket, sys
os.setuid(65533)
held = socket.create_server(("", int(sys.argv[1])))
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_who_listens_at_the_port_is_named_when_the_job_fails() -> None:
    launcher = [sys.executable, "-m", "perseus.run", "-np", "2", "--no-tag"]
    with subprocess.Popen(
        [*launcher, sys.executable, "-c", BEATEN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout
        port = job.stdout.readline().strip()
        with subprocess.Popen(
            [sys.executable, "-c", LISTENS, port], stdin=subprocess.PIPE
        ) as stranger:
            _, said = job.communicate(timeout=60)
            stranger.kill()
    assert job.returncode == 3
    expected = f"perseusrun: user 65533 listens at MASTER_PORT, {port}, where rank 0 of torch"
    assert expected in said


def test_at_another_host_it_is_none_that_systems_give_out() -> None:
    ports = [int(environment_of({}, here=False)["MASTER_PORT"]) for _ in range(20)]
    assert all(port >= 15000 and port not in assigned_ports() for port in ports)
    assert len(set(ports)) > 1


@pytest.mark.parametrize(
    ("given", "several_hosts", "address", "port"),
    [
        ({"MASTER_ADDR": "node7", "MASTER_PORT": "29500"}, True, "node7", "29500"),
        ({"MASTER_PORT": "29500"}, True, "192.0.2.1", "29500"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, False, "localhost", "29500"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, True, "192.0.2.1", "29500"),
        ({"MASTER_ADDR": "127.0.1.1", "MASTER_PORT": "29500"}, True, "192.0.2.1", "29500"),
    ],
)
def test_what_the_user_has_chosen_stays(
    given: dict[str, str], several_hosts: bool, address: str, port: str
) -> None:
    environment = environment_of(given, several_hosts=several_hosts)
    assert environment == {"MASTER_ADDR": address, "MASTER_PORT": port}


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_what_another_launcher_has_chosen_does_not_stay(name: str) -> None:
    given = {"MASTER_ADDR": "node7", "MASTER_PORT": "29500", name: "1"}
    environment = environment_of(given)
    assert environment["MASTER_ADDR"] == "192.0.2.1"
    assert environment["MASTER_PORT"] != "29500"


def test_a_host_has_an_address_and_an_unknown_one_its_name() -> None:
    shell = RemoteShell(command=["rsh"])
    assert address_of("localhost", shell) in ("127.0.0.1", "::1")
    assert address_of("no-such-host.invalid", shell) == "no-such-host.invalid"


def test_ranks_learn_their_place(run_ranks: RunRanks) -> None:
    outer = {"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "7", "MASTER_ADDR": "node7"}
    result = run_ranks(
        3,
        PLACE,
        options=("-H", "localhost:2,127.0.0.1:1"),
        environment={**os.environ, **outer},
    )
    assert sorted(result.stdout.splitlines()) == [
        "[0]<stdout>:0 3 0 2 127.0.0.1",
        "[1]<stdout>:1 3 1 2 127.0.0.1",
        "[2]<stdout>:2 3 0 1 127.0.0.1",
    ], result.stderr


@pytest.mark.parametrize("backend", ["perseus", "gloo"])
@pytest.mark.parametrize("size", [1, 2])
def test_torch_distributed_finds_its_ranks(run_ranks: RunRanks, backend: str, size: int) -> None:
    pytest.importorskip("torch")
    result = run_ranks(size, MEETS.replace("BACKEND", backend))
    assert result.returncode == 0, result.stderr
    total = float(size * (size + 1) // 2)
    told = [f"[{rank}]<stdout>:{rank} {size} {[total] * 3}" for rank in range(size)]
    assert sorted(result.stdout.splitlines()) == told


def test_perseusrun_started_by_torchrun_makes_a_job_of_its_own() -> None:
    pytest.importorskip("torch")
    script = MEETS.replace("BACKEND", "gloo")
    inner = [sys.executable, "-m", "perseus.run", "-np", "2", sys.executable, "-c", script]
    program = f"import subprocess, sys; sys.exit(subprocess.run({inner!r}).returncode)"
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
         "--no-python", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "[1]<stdout>:1 2 [3.0, 3.0, 3.0]" in result.stdout
