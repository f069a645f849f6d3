"""Ranks on a host that is cut off are left out, and the others go on."""

from __future__ import annotations

import subprocess
import sys

from netlab import Hosts, netlab

TRAINING = """
import os, numpy, perseus_core as core
launched = int(os.environ["PERSEUS_RANK"])
core.init()
step = 0
while step < 300:
    try:
        total = core.allreduce(numpy.full(1000, launched), core.ReduceOp.SUM, name="total")
        assert (total == (6 if core.size() == 4 else 1)).all(), total
        if step == 5 and core.size() == 4: print("ready", flush=True)
        step = step + 1 if core.size() == 2 or step < 10 else step
    except core.HorovodInternalError as error:
        print("error:", error, flush=True)
        core.shutdown()
        core.init()
        step = 10
print("well", core.size(), flush=True)
"""


def test_those_that_reach_the_launcher_go_on(hosts: Hosts) -> None:
    program = hosts.folder / "program.py"
    program.write_text(TRAINING)
    settings = {"PERSEUS_PEER_TIMEOUT": "2", "PERSEUS_START_TIMEOUT": "5"}
    options = ("--min-np", "2")
    with hosts.start("0:2,1:2", sys.executable, str(program), options=options, **settings) as job:
        assert job.stdout
        try:
            ready = 0
            while ready < 4:
                ready += job.stdout.readline().endswith("ready\n")
            netlab("unplug", "1")
            said, errors = job.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            job.kill()
            raise
        finally:
            netlab("plug", "1")
    assert job.returncode == 0, said + (errors or "")
    assert said.count("well 2") == 2
    assert {line[:3] for line in said.splitlines() if "well" in line} == {"[0]", "[1]"}
