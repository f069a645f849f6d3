"""perseusrun --min-np: ranks fail, and the others meet anew and go on."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import RunRanks

LAUNCHED = 4

#: Trains to step 30 by adding up; the rank that LOST names ends at step 10.
TRAINING = """
import os, signal, sys, time, numpy, perseus_core as core
launched = int(os.environ["PERSEUS_RANK"])

def fail():
    how = os.environ["HOW"]
    if how == "raises": raise ZeroDivisionError("the script's own mistake")
    if how == "exits": os._exit(7)
    if how == "is killed": os.kill(os.getpid(), signal.SIGKILL)
    if how == "is stopped": os.kill(os.getpid(), signal.SIGSTOP)

core.init()
step, losses = 0, 0
while step < 30:
    try:
        if step == 10 and str(launched) in os.environ["LOST"].split(): fail()
        mine = numpy.full(1000, launched + step, numpy.float32)
        total = core.allreduce(mine, core.ReduceOp.SUM, name="total")
        ranks = core.allgather(numpy.array([launched]), name="ranks")
        assert (total == ranks.sum() + step * core.size()).all(), (total, ranks)
        assert ranks.tolist() == sorted(ranks.tolist())
        assert ranks[core.rank()] == launched
        step += 1
    except core.HorovodInternalError as error:
        losses += 1
        print(f"at {step}: {error}", flush=True)
        core.shutdown()
        began = time.monotonic()
        core.init()
        taken = time.monotonic() - began
        # Some may have completed a step that others have not.
        step = int(core.allreduce(numpy.array(step), core.ReduceOp.MIN, name="step"))
        print(f"of {core.size()} rank {core.rank()}, init took {taken:.2f} s", flush=True)
core.shutdown()
print(f"well, {losses} losses", flush=True)
"""

#: The program of docs/reliability.md; the first of LOST is lost in a step, the others start again.
RECIPE = """
import os, signal, numpy, perseus_core as hvd
launched, steps = int(os.environ["PERSEUS_RANK"]), 20
lost = [int(rank) for rank in os.environ["LOST"].split()]
starts, saved = 0, 0

def train(step):
    global saved
    if step == 7 and launched == lost[0]: os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(numpy.array(step), name="step")
    saved = step + 1

def start_again_from_the_last_checkpoint():
    global starts
    starts += 1
    hvd.barrier()
    if starts < len(lost) and launched == lost[starts]: os.kill(os.getpid(), signal.SIGKILL)
    return int(hvd.allreduce(numpy.array(saved), hvd.ReduceOp.MIN, name="last checkpoint"))

RECIPE
print("well", hvd.size(), step, starts, flush=True)
"""


def recipe() -> str:
    page = Path(__file__).parents[3] / "docs" / "reliability.md"
    section = page.read_text().partition("## Going on without a rank")[2]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


#: The end of elastic scripts, once they have a State and die_in_training.
ELASTIC_TRAINING = """
model = torch.nn.Linear(3, 1, bias=False)
torch.nn.init.zeros_(model.weight)
sgd = torch.optim.SGD(model.parameters(), lr=0.5)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())

@hvd.elastic.run
def train(state):
    while state.step < 20:
        if state.step == 7: die_in_training()
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
    return hvd.size()

state = State(model=model, optimizer=optimizer, step=0)
size = train(state)
print("ended", size, state.step, model.weight.tolist(), flush=True)
"""

ELASTIC = """
import os, torch
import perseus.torch.horovod as hvd
launched = int(os.environ["PERSEUS_RANK"])
hvd.init()
State = hvd.elastic.TorchState

def die_in_training():
    if launched == 1: os._exit(1)
"""


def lines(output: str, word: str) -> list[str]:
    return [line for line in output.splitlines() if word in line]


@pytest.mark.parametrize("how", ["raises", "exits", "is killed", "is stopped"])
def test_the_others_go_on_without_a_rank(run_ranks: RunRanks, how: str) -> None:
    environment = {**os.environ, "HOW": how, "LOST": "2", "PERSEUS_PEER_TIMEOUT": "2"}
    result = run_ranks(LAUNCHED, TRAINING, options=("--min-np", "3"), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(lines(result.stdout, "well, 1 losses")) == 3
    # The small allgather of step 9 comes with its agreement, so some may have it and others not.
    errors = re.findall(r"at (?:9|10): .*", result.stdout)
    assert len(errors) == 3, result.stdout
    assert all("rank 2 " in line for line in errors)
    news = "rank 2 on host localhost .*; the other 3 go on"
    assert re.search(news, result.stderr)
    assert len(lines(result.stdout, "of 3 rank")) == 3
    for taken in re.findall(r"init took ([\d.]+) s", result.stdout):
        assert float(taken) < 5


def test_several_are_lost_at_once_and_one_later(run_ranks: RunRanks) -> None:
    program = TRAINING.replace("if step == 10", "if step == (20 if launched == 0 else 10)")
    environment = {**os.environ, "HOW": "is killed", "LOST": "0 1 3"}
    result = run_ranks(5, program, options=("--min-num-proc", "2"), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(lines(result.stdout, "well")) == 2
    assert len(lines(result.stdout, "of 2 rank")) == 2


def test_the_recipe_goes_on_after_losses_in_recovery(run_ranks: RunRanks) -> None:
    program = RECIPE.replace("RECIPE", recipe())
    environment = {**os.environ, "LOST": "1 2 0"}
    result = run_ranks(5, program, options=("--min-np", "2"), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(lines(result.stdout, "well 2 20 3")) == 2, result.stdout


def test_too_few_are_left(run_ranks: RunRanks) -> None:
    environment = {**os.environ, "HOW": "exits", "LOST": "1 2"}
    result = run_ranks(LAUNCHED, TRAINING, options=("--min-np", "3"), environment=environment)
    assert result.returncode == 1
    assert "exited with code 7" in result.stderr
    assert "too few ranks are left: 2 of at least 3" in result.stderr
    assert not lines(result.stdout, "well")


def test_without_the_option_the_job_ends(run_ranks: RunRanks) -> None:
    environment = {**os.environ, "HOW": "exits", "LOST": "1"}
    result = run_ranks(LAUNCHED, TRAINING, environment=environment)
    assert result.returncode == 7
    assert not lines(result.stdout, "well")


def test_elastic_training_goes_on(run_ranks: RunRanks) -> None:
    result = run_ranks(3, ELASTIC + ELASTIC_TRAINING, options=("--min-np", "2"))
    assert result.returncode == 0, result.stdout + result.stderr
    ended = [line.partition(":")[2] for line in lines(result.stdout, "ended")]
    assert ended == ["ended 2 20 [[-10.0, -10.0, -10.0]]"] * 2


#: The first of LOST is lost in training, the others each in the next recovery, WHERE in it.
LOST_IN_RECOVERY = """
import os, signal, time, torch
import perseus.torch.horovod as hvd
launched = int(os.environ["PERSEUS_RANK"])
lost = [int(rank) for rank in os.environ["LOST"].split()]
where = os.environ["WHERE"]
hvd.init()
recoveries = 0

def die(place):
    if place == where and recoveries < len(lost) and launched == lost[recoveries]:
        os.kill(os.getpid(), signal.SIGKILL)

class State(hvd.elastic.TorchState):
    def restore(self):
        global recoveries
        super().restore()
        recoveries += 1
    def on_reset(self):
        die("init")  # others may be in it
        super().on_reset()
    def sync(self):
        if recoveries: hvd.barrier()
        die("sync")
        super().sync()

def die_in_training():
    if launched == lost[0]: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("where", "lost"), [("init", "1 2"), ("sync", "1 2 0")])
def test_elastic_training_goes_on_after_losses_in_recovery(
    run_ranks: RunRanks, where: str, lost: str
) -> None:
    environment = {**os.environ, "WHERE": where, "LOST": lost}
    result = run_ranks(
        5,
        LOST_IN_RECOVERY + ELASTIC_TRAINING,
        options=("--min-np", "2"),
        environment=environment,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    left = 5 - len(lost.split())
    ended = [line.partition(":")[2] for line in lines(result.stdout, "ended")]
    assert ended == [f"ended {left} 20 [[-10.0, -10.0, -10.0]]"] * left


ABANDONED = """
import os, signal, numpy, perseus_core as core
core.init()
if core.rank() == 1: os.kill(os.getpid(), signal.SIGSTOP)
try:
    core.allreduce(numpy.ones(1))
except core.HorovodInternalError:
    print("goes home", flush=True)
"""


def test_a_stopped_rank_does_not_outlive_the_others(run_ranks: RunRanks) -> None:
    environment = {**os.environ, "PERSEUS_PEER_TIMEOUT": "2"}
    result = run_ranks(3, ABANDONED, environment=environment, timeout=20)
    assert result.stdout.count("goes home") == 2
    assert result.returncode != 0
    assert "rank 1" in result.stderr
