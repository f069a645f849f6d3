"""torch.distributed meets over hosts, with nothing said but what perseusrun says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from netlab import NETLAB, Hosts, lines

pytest.importorskip("torch")

# A line is one write: torchrun's ranks do not buffer, so lines of several writes would be mixed.
MEETS = """
import sys, torch, torch.distributed as dist, perseus.torch
dist.init_process_group("BACKEND")
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
sys.stdout.write(f"{dist.get_rank()} {dist.get_world_size()} {total.tolist()}\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("backend", ["perseus", "gloo"])
@pytest.mark.parametrize("places", ["0:2,1:1", "1:1,2:1,0:1"], ids=["rank 0 here", "rank 0 there"])
def test_torch_distributed_finds_its_ranks(hosts: Hosts, backend: str, places: str) -> None:
    # Gloo takes the address of this machine's name, which is nobody's here, unless told otherwise.
    options = ("--network-interfaces", "eth0") if backend == "gloo" else ()
    result = hosts.run_script(places, MEETS.replace("BACKEND", backend), options=options)
    assert result.returncode == 0, result.stderr
    assert lines(result.stdout) == [f"{rank} 3 [6.0, 6.0, 6.0]" for rank in range(3)]


#: Listens at the ports at which ranks would look for each other, and answers nobody.
HOLDS_PORTS = """
import os, socket, sys
if os.geteuid() == 0: os.setuid(65534)
held = [socket.create_server(("0.0.0.0", 29400 + step)) for step in (2, 4, 6, 8)]
print("held", flush=True)
sys.stdin.read()
"""


def test_torchrun_s_ranks_meet_through_its_store(hosts: Hosts) -> None:
    program = hosts.folder / "program.py"
    program.write_text(MEETS.replace("BACKEND", "perseus"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    torchrun += ["--nproc-per-node", "2", "--master-addr", "10.86.0.1", "--master-port", "29400"]
    environment = {**os.environ, "PERSEUS_SECRET": "5ec4e7" * 8}
    with subprocess.Popen(
        [str(NETLAB), "at", "0", sys.executable, "-c", HOLDS_PORTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        agents = [
            subprocess.Popen(
                [str(NETLAB), "at", str(host), *torchrun, "--node-rank", str(host), str(program)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            for host in range(2)
        ]
        try:
            said = "".join(agent.communicate(timeout=120)[0] for agent in agents)
        finally:
            holder.communicate(b"")
            for agent in agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
                    agent.wait()
    assert [agent.returncode for agent in agents] == [0, 0], said
    for rank in range(4):
        assert f"{rank} 4 [10.0, 10.0, 10.0]" in said


#: A rank that no launcher knows of: its rank, the number of ranks, and where they meet.
NUMBERED = """
import sys, torch, torch.distributed as dist, perseus.torch
rank, size, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for i in range(2):
    method = f"{where}{i}"
    dist.init_process_group("perseus", init_method=method, rank=rank, world_size=size)
    total = torch.ones(3) * (rank + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
print(rank, size, total.tolist(), perseus.torch.is_initialized())
"""


@pytest.mark.parametrize("method", ["file", "tcp"])
@pytest.mark.parametrize(
    "variables", [{}, {"PERSEUS_SECRET": "5ec4e7" * 8, "PERSEUS_WIRE": "encrypted"}]
)
def test_ranks_that_no_launcher_knows_of_meet(
    hosts: Hosts, method: str, variables: dict[str, str]
) -> None:
    where = f"file://{hosts.folder}/meet" if method == "file" else "tcp://10.86.0.1:2942"
    said = hosts.ranks_without_launcher(
        [0, 1, 1],
        NUMBERED,
        arguments_of=lambda rank: (str(rank), "3", where),
        variables_of=lambda rank: variables,
        timeout=120,
    )
    for number, text in enumerate(said):
        assert f"{number} 3 [6.0, 6.0, 6.0] False" in text
