"""Process sets of elastic training: each new world has them anew, by their rules or ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

#: Trains to step 12; at step 4, what EVENT says: a worker is killed, or a host is added. In each
#: step, every set adds up the ranks that are in it, and each of these knows the sum.
TRAINING = """
import os, signal, time, torch
import perseus.torch.horovod as hvd

event = os.environ["EVENT"]
process_sets = {
    "host": hvd.ProcessSet(lambda world: world.host),
    "first": hvd.ProcessSet(lambda world: [ranks[0] for ranks in world.hosts]),
    "even": hvd.ProcessSet(lambda world: range(0, world.size, 2)),
    "list": hvd.ProcessSet([0, 1]),
    "last": hvd.ProcessSet([1, 2]),
}
hvd.init(process_sets=list(process_sets.values()))

def check():
    for name, one in process_sets.items():
        if one.process_set_id is None:
            assert name == "last" and hvd.size() < 3, name
        elif one.included():
            mine = torch.tensor([hvd.rank()])
            total = hvd.allreduce(mine, op=hvd.Sum, process_set=one, name=name)
            assert int(total) == sum(one.ranks), (name, one.ranks, total)
    assert process_sets["even"].ranks == list(range(0, hvd.size(), 2))
    assert process_sets["host"].size() == hvd.local_size()
    assert process_sets["host"].included() and process_sets["host"].rank() == hvd.local_rank()
    assert process_sets["first"].included() == (hvd.local_rank() == 0)

@hvd.elastic.run
def train(state):
    while state.step < 12 or hvd.size() == state.size:
        check()
        hvd.barrier()
        if state.step == 4 and hvd.size() == state.size:
            if event == "kill" and hvd.rank() == hvd.size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if event.startswith("/") and hvd.rank() == 0:
                with open(event + ".new", "w") as file: file.write("localhost:3\\n127.0.0.1:1\\n")
                os.replace(event + ".new", event)
        time.sleep(0.02)
        state.step += 1
        state.commit()

train(hvd.elastic.TorchState(step=0, size=hvd.size()))
ranks = {name: one.ranks for name, one in process_sets.items() if one.process_set_id is not None}
print(f"well {hvd.size()} {ranks}", flush=True)
"""


def run(folder: Path, event: str, *arguments: str) -> list[str]:
    program = folder / "train.py"
    program.write_text(TRAINING)
    result = subprocess.run(
        [sys.executable, "-m", "perseus.run", *arguments, sys.executable, str(program)],
        env={**os.environ, "EVENT": event},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [line for line in result.stdout.splitlines() if "well" in line]
    return sorted(line.partition("well ")[2] for line in lines)


@pytest.mark.parametrize("size", [3, 4])
def test_survivors_make_their_sets_anew(tmp_path: Path, size: int) -> None:
    left = size - 1
    even = list(range(0, left, 2))
    last = ", 'last': [1, 2]" if left >= 3 else ""
    sets = f"{{'host': {list(range(left))}, 'first': [0], 'even': {even}, 'list': [0, 1]{last}}}"
    elastic = ["--max-np", str(size), "--blacklist-by", "slot"]
    for options in ([], elastic):
        lines = run(tmp_path, "kill", "-np", str(size), "--min-np", "2", *options)
        assert lines == [f"{left} {sets}"] * left


def test_a_new_rank_and_the_others_make_the_same_sets(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:3\n")
    lines = run(tmp_path, str(hosts), "-np", "3", "--watch-hostfile", str(hosts), "--max-np", "4")
    others = "'first': [0, 3], 'even': [0, 2], 'list': [0, 1], 'last': [1, 2]}"
    assert lines == [f"4 {{'host': [0, 1, 2], {others}"] * 3 + [f"4 {{'host': [3], {others}"]
