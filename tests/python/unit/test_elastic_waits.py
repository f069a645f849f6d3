"""Waits of an elastic job that another process could draw out, with shorter limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: perseusrun, in which a rank without a place has one second to leave.
LAUNCHER = """
import sys
from perseus.elastic import launcher
from perseus.run import cli
launcher._SECONDS_TO_LEAVE = 1.0
sys.exit(cli.main())
"""

#: Rank 1 does not end although the job has no place for it any more.
PROGRAM = """
import os, sys, time
import numpy as np
import perseus_core as core
from perseus.common.elastic import ObjectState, run_fn

hosts = sys.argv[1]

def reset():
    core.shutdown()
    try:
        core.init()
    except SystemExit as refused:
        print(refused, flush=True)
        time.sleep(1000)

core.init()
state = ObjectState(lambda value: value, core.rank)

def train(state):
    if core.size() == 1:
        return
    if core.rank() == 0:
        with open(hosts + ".new", "w") as file:
            file.write("localhost:1\\n")
        os.replace(file.name, hosts)
    while True:
        core.allreduce(np.ones(1), name="step")
        state.commit()

run_fn(train, reset)(state)
print("well", core.size(), flush=True)
"""


def test_a_rank_without_a_place_is_killed_if_it_does_not_leave(tmp_path: Path) -> None:
    hosts, program = tmp_path / "hosts", tmp_path / "train.py"
    hosts.write_text("localhost:2\n")
    program.write_text(PROGRAM)
    options = ["-np", "2", "--min-np", "1", "--watch-hostfile", str(hosts)]
    result = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *options, sys.executable, str(program), str(hosts)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    why = "this process has no place in the job any more: its slot is not the job's any more"
    assert sorted(result.stdout.splitlines()) == ["[0]<stdout>:well 1", f"[1]<stdout>:{why}"]
