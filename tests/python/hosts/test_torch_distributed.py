"""torch.distributed meets over hosts, with nothing said but what perseusrun says."""

from __future__ import annotations

import pytest
from netlab import Hosts, lines

pytest.importorskip("torch")

MEETS = """
import torch, torch.distributed as dist, perseus.torch
dist.init_process_group("BACKEND")
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(dist.get_rank(), dist.get_world_size(), total.tolist())
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
