"""Tests that ranks meet under torchrun though others hold the places where they would look."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from free_ports import find_free_ports

torch = pytest.importorskip("torch")


#: Listens at these ports and abstract names, as another user if it can, and answers nobody.
SQUATTER = """
import os, socket, sys
if os.geteuid() == 0: os.setuid(65534)
held = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[1].split(",") if port]
for name in sys.argv[2:]:
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind("\\0" + name)
    held[-1].listen()
print("held", flush=True)
sys.stdin.read()
"""
#: A rank, without PyTorch.
RANK = """
import perseus_core as core
core.init()
print("met", core.rank(), core.size(), flush=True)
core.barrier()
"""
#: A rank with PyTorch, which fails in its first attempt.
TRAINS = """
import os, sys, time, torch
import torch.distributed as dist
import perseus.torch.horovod as hvd
while len(sys.argv) > 3 and not os.path.exists(sys.argv[3]):
    time.sleep(0.01)
began = time.monotonic()
if sys.argv[1] == "backend":
    dist.init_process_group("perseus")
else:
    hvd.init()
for _ in range(2):
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="x").tolist() == [2.0] * 3
    if sys.argv[1] == "backend": break
    hvd.shutdown()
    hvd.init()
print(f"met in {time.monotonic() - began:.1f} s", flush=True)
if sys.argv[2] != os.environ["TORCHELASTIC_RESTART_COUNT"]:
    os._exit(3)
if sys.argv[1] == "backend": dist.destroy_process_group()
"""


@contextmanager
def squatter(ports: Sequence[int] = (), names: Sequence[str] = ()) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", SQUATTER, ",".join(map(str, ports)), *names]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def master_port() -> int:
    """A port such that those of the ranks are free, too."""
    return find_free_ports(5, step=2)[0]


def ports_of(master_port: int) -> list[int]:
    return [master_port + step for step in (2, 4, 6, 8)]


def start(master_port: int, rank: int, **variables: str) -> subprocess.Popen[str]:
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "PERSEUS_START_TIMEOUT": "30",
    }
    return subprocess.Popen(
        [sys.executable, "-c", RANK],
        env={**os.environ, **environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def name_of(master_port: int) -> str:
    """Returns the name under which the ranks of `start` meet, as anybody can find it out."""
    variables = {
        "TORCHELASTIC_RUN_ID": "",
        "TORCHELASTIC_RESTART_COUNT": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": "2",
    }
    known = "".join(f"{name}={value}\n" for name, value in variables.items())
    secret = hashlib.sha256(known.encode()).digest()
    for said in (f"MASTER_PORT={master_port}", "local meeting"):
        secret = hmac.new(secret, said.encode(), hashlib.sha256).digest()
    return ("perseus-" + secret.hex())[:107]


def expect_meeting(ranks: Sequence[subprocess.Popen[str]]) -> None:
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [f"met {rank} 2" in said[rank] for rank in range(2)] == [True, True], said


@pytest.mark.parametrize("secret", ["", "ab" * 32])
def test_ranks_of_a_host_meet_though_another_user_holds_all_ports(
    master_port: int, secret: str
) -> None:
    with squatter(ports_of(master_port)):
        ranks = [start(master_port, rank, PERSEUS_SECRET=secret) for rank in range(2)]
        expect_meeting(ranks)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_ranks_of_a_host_meet_though_another_user_holds_their_name(master_port: int) -> None:
    with squatter(names=[name_of(master_port)]):
        # As of a service: there is no folder of its own.
        ranks = [start(master_port, rank, XDG_RUNTIME_DIR="", HOME="") for rank in range(2)]
        expect_meeting(ranks)


def test_ranks_of_hosts_meet_without_pytorch_though_all_known_ports_are_taken(
    master_port: int,
) -> None:
    began = time.monotonic()
    with squatter(ports_of(master_port)):
        several = {"LOCAL_WORLD_SIZE": "1", "PERSEUS_SECRET": "ab" * 32}
        expect_meeting([start(master_port, rank, **several) for rank in range(2)])
    assert time.monotonic() - began < 15


def test_a_rank_whose_rank_0_has_no_port_says_that_others_have_them(master_port: int) -> None:
    with squatter([master_port]):
        rank = start(1, 1, PERSEUS_MASTER_PORT=str(master_port), LOCAL_WORLD_SIZE="1",
                     PERSEUS_START_TIMEOUT="2", PERSEUS_SECRET="ab" * 32)  # fmt: skip
        said, _ = rank.communicate(timeout=60)
    assert rank.returncode != 0
    assert "another program answers at each of these ports" in said


def test_a_port_that_is_taken_is_an_error_on_all_ranks_that_names_the_holder(
    master_port: int,
) -> None:
    with squatter([master_port]) as holder:
        began = time.monotonic()
        ranks = [start(1, rank, PERSEUS_MASTER_PORT=str(master_port)) for rank in (0, 1)]
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
        assert time.monotonic() - began < 20
    for text in said:
        assert f"cannot listen on 127.0.0.1:{master_port}" in text
        assert re.search(rf"by process {holder.pid} of user \d+", text), text


def torchrun(master_port: int, *arguments: str, nodes: int, restarts: int = 0) -> list[str]:
    """Returns the output of an agent for each of `nodes` on this host, which does not matter."""
    command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", str(restarts)]
    if nodes == 1:
        command += ["--standalone", "--nproc-per-node", "2"]
    else:
        command += ["--nnodes", str(nodes), "--nproc-per-node", "1", "--master-addr", "127.0.0.1"]
        command += ["--master-port", str(master_port)]
    agents = [
        subprocess.Popen(
            [*command, *(["--node-rank", str(node)] if nodes > 1 else []), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(nodes)
    ]
    try:
        # If one fails early, the others would wait for it for minutes.
        end = time.monotonic() + 100
        while any(agent.poll() is None for agent in agents):
            if any(agent.poll() for agent in agents) or time.monotonic() > end:
                break
            time.sleep(0.05)
    finally:
        for agent in agents:
            agent.terminate()  # it ends its rank, too
    said = [agent.communicate(timeout=60)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * nodes, "\n".join(said)
    return said


#: Writes a wrong port wherever rank 0 may have left the right one, again and again.
LIAR = """
import datetime, pathlib, sys, time
import torch.distributed as dist
master, wrong, has_lied = sys.argv[1:]
store = dist.TCPStore("127.0.0.1", int(master), is_master=False, wait_for_workers=False,
                      timeout=datetime.timedelta(seconds=60))
while True:
    for generation in range(2):
        store.set(f"perseus/meeting/none/0/{generation}", wrong)
    pathlib.Path(has_lied).touch()
    time.sleep(0.01)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(TRAINS)
    return str(file)


@pytest.mark.parametrize("by", ["backend", "horovod"])
def test_ranks_of_two_hosts_meet_through_the_store_though_all_ports_are_taken(
    master_port: int, script: str, by: str
) -> None:
    with squatter(ports_of(master_port)):
        said = torchrun(master_port, script, by, "1", nodes=2, restarts=1)
    assert sum(text.count("met in") for text in said) == 4  # two ranks, twice


def test_ranks_of_a_standalone_torchrun_meet_again_after_a_restart(
    master_port: int, script: str
) -> None:
    (said,) = torchrun(master_port, script, "horovod", "1", nodes=1, restarts=1)
    assert said.count("met in") == 4


def test_a_store_that_lies_costs_some_seconds_and_no_more(
    master_port: int, script: str, tmp_path: Path
) -> None:
    has_lied = str(tmp_path / "has_lied")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        wrong = silent.getsockname()[1]
        liar = subprocess.Popen(
            [sys.executable, "-c", LIAR, str(master_port), str(wrong), has_lied]
        )
        try:
            said = torchrun(master_port, script, "horovod", "0", has_lied, nodes=2)
        finally:
            liar.kill()
            liar.wait()
        silent.setblocking(False)
        silent.accept()  # it was called, so the lie was read
    took = [float(found) for found in re.findall(r"met in ([\d.]+) s", "".join(said))]
    assert len(took) == 2
    assert max(took) < 25
