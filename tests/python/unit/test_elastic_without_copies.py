"""Elastic training without copies: wherever a rank is lost, a step counts for all or for none."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from conftest import RunRanks

pytest.importorskip("torch")

#: The gradient is the greatest of the ranks' gradients, which no order of ranks changes. So the
#: parameters in the end are, bit for bit, those of one process that computes the gradients of the
#: ranks which have taken part in each step. LOST has "PLACE@STEP:RANK, ...", ranks as launched.
TRAINING = """
import os, signal, threading, time, warnings
import torch
import perseus.torch.horovod as hvd

launched, steps = int(os.environ["PERSEUS_RANK"]), int(os.environ["STEPS"])
lost = os.environ.get("LOST", "").split(", ")
killed_in = os.environ.get("KILLED_IN", ":")  # SECONDS:PLACE

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def reached(place, step):
    if f"{place}@{step}:{launched}" in lost:
        die()
    seconds, _, where = killed_in.partition(":")
    if f"{place}@{step}:{launched}" == where:
        timer = threading.Timer(float(seconds), die)
        timer.daemon = True
        timer.start()

class Momentum(torch.optim.Optimizer):
    \"\"\"SGD with momentum, which updates one parameter after the other.\"\"\"
    def __init__(self, params):
        super().__init__(params, {"lr": 0.05})
    @torch.no_grad()
    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        for number, param in enumerate(params):
            if number == len(params) // 2: reached("mid-step", current())
            momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
            param.sub_(momentum.mul_(0.9).add_(param.grad), alpha=self.param_groups[0]["lr"])

def current():
    return state.step if "state" in globals() else -1

def model_of():
    torch.manual_seed(5)
    layers = [torch.nn.Linear(6, 40), torch.nn.BatchNorm1d(40), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(40, 30), torch.nn.Linear(30, 1))

def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return model(torch.randn(16, 6, generator=generator)).tanh().mean()

class State(hvd.elastic.TorchState):
    def save(self):
        reached("before save", self.step - 1)
        super().save()
        reached("after save", self.step - 1)
    def sync(self):
        if f"gives@{self.step}:{launched}" in lost:
            # Once the others have the model.
            self._handlers["optimizer"].sync = lambda: (time.sleep(0.5), die())
        super().sync()

def awaits_joiner(took):
    \"\"\"Returns whether a rank is to join, and has not taken part in ten steps yet.\"\"\"
    sizes = [len(ranks) for ranks in took]
    return "JOINS" in os.environ and sizes[sizes.index(1) :].count(2) < 10

hvd.init()
model = model_of()
optimizer = Momentum(model.parameters())
# The gradient of the first layer comes last, when those of others are being reduced.
model[0].weight.register_hook(lambda grad: reached("backward", current()))
optimizer.register_step_pre_hook(lambda *_: reached("before step", current()))
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Max)
state = State(model, optimizer, copies=False, step=0, took=[])
own = {}

def before_step(step):
    OWN_BEFORE

def after_step(step):
    OWN_AFTER

@hvd.elastic.run
def train(state):
    while state.step < steps or awaits_joiner(state.took):
        here = hvd.allgather(torch.tensor([launched]), name="ranks").tolist()
        optimizer.zero_grad()
        loss_of(model, state.step, launched).backward()
        reached("before synchronize", state.step)
        before_step(state.step)
        optimizer.step()
        reached("after step", state.step)
        after_step(state.step)
        state.took = [*state.took, here]
        state.step += 1
        state.commit()
        reached("after commit", state.step - 1)
        time.sleep(float(os.environ.get("PAUSE", "0")))

train(state)
tracked = int(model[1].num_batches_tracked)
assert tracked == state.step, (tracked, state.step)
keeps = any(handler.has_copy() for handler in state._large())
took = state.took
del state

alone = model_of()
plain = Momentum(alone.parameters())
for step, ranks in enumerate(took):
    gradients = []
    for rank in ranks:
        plain.zero_grad()
        loss_of(alone, step, rank).backward()
        gradients.append([param.grad for param in alone.parameters()])
    for param, *of_ranks in zip(alone.parameters(), *gradients):
        param.grad = torch.stack(of_ranks).amax(0)
    plain.step()
for ours, theirs in zip(model.parameters(), alone.parameters()):
    assert torch.equal(ours, theirs), (ours - theirs).abs().max()
print("well", hvd.size(), "copies" if keeps else "none", [len(r) for r in took], flush=True)
"""


def job(
    run_ranks: RunRanks, ranks: int, before: str = "pass", after: str = "pass", **settings: str
) -> subprocess.CompletedProcess[str]:
    options = ("--min-np", "1", "--max-np", str(ranks), "-H", f"localhost:{ranks}")
    options += ("--blacklist-by", "slot")
    if "JOINS" in settings:
        options += ("--blacklist-cooldown-range", "1", "1")
    program = TRAINING.replace("OWN_BEFORE", before).replace("OWN_AFTER", after)
    environment = {**os.environ, "STEPS": "16", **settings}
    return run_ranks(ranks, program, options=options, environment=environment)


def ended(result: subprocess.CompletedProcess[str], left: int, copies: str = "none") -> None:
    """Asserts that so many ranks have ended well, and whether they keep copies."""
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(f"well {left} {copies} ") == left, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("ranks", "lost"),
    [
        (2, "before step@5:0"),
        (2, "mid-step@5:1"),
        (3, "before synchronize@4:0, after step@9:1"),
        (4, "backward@3:1, mid-step@7:0, before save@11:3"),
        (4, "before step@3:0, after save@7:2, after commit@11:1"),
        (4, "mid-step@6:0, backward@6:2"),  # at once
        (4, "after save@0:0, before synchronize@1:1"),  # while there is the first copy
    ],
)
def test_a_step_counts_for_all_or_for_none(run_ranks: RunRanks, ranks: int, lost: str) -> None:
    result = job(run_ranks, ranks, LOST=lost)
    ended(result, left=ranks - len(lost.split(", ")))
    assert "keeps copies" not in result.stderr


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_is_killed_at_any_moment(run_ranks: RunRanks, seed: int) -> None:
    seconds = random.Random(seed).uniform(0, 0.02)
    ranks, rank = 3 + seed % 2, seed % 3
    result = job(run_ranks, ranks, STEPS="60", KILLED_IN=f"{seconds}:after commit@6:{rank}")
    ended(result, left=ranks - 1)


def test_a_new_rank_gets_the_state_and_keeps_no_copy_either(run_ranks: RunRanks) -> None:
    result = job(run_ranks, 2, JOINS="1", LOST="mid-step@5:0", PAUSE="0.05")
    ended(result, left=2)


def test_an_operation_after_each_step_keeps_the_copies(run_ranks: RunRanks) -> None:
    operation = "hvd.allreduce(torch.ones(1), name='loss')"
    result = job(run_ranks, 3, after=operation, LOST="after step@7:1")
    ended(result, left=2, copies="copies")
    assert result.stderr.count("1 operations came between optimizer.step() and state.commit()") == 3


def test_an_operation_that_ends_after_the_step_keeps_the_copies(run_ranks: RunRanks) -> None:
    start = "own['handle'] = hvd.allreduce_async(torch.ones(1), name='late')"
    before = f"if launched == 1: {start}"
    after = f"if launched == 0: {start}\n    hvd.synchronize(own['handle'])"
    result = job(run_ranks, 2, before, after)
    ended(result, left=2, copies="copies")
    assert result.stderr.count("an operation was under way when optimizer.step() began") == 1
    assert result.stderr.count("operations came between optimizer.step() and") == 1


#: Rank 0 alone applies step 7. The others fail before they begin it, each with its own error.
FAIL_BEFORE = """if step == 7 and launched != 0 and "failed" not in own:
        own["failed"] = True
        optimizer.synchronize()
        while not os.path.exists(os.environ["FOLDER"] + "/applied"):
            time.sleep(0.01)
        raise hvd.HorovodInternalError("this rank's own")"""
HAS_APPLIED = """if (step, launched) == (7, 0) and "applied" not in own:
        own["applied"] = open(os.environ["FOLDER"] + "/applied", "w").close()"""


def test_a_rank_that_has_lost_its_values_takes_those_of_another(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    fails = "\n        raise hvd.HorovodInternalError('its own')"
    result = job(run_ranks, 3, FAIL_BEFORE, HAS_APPLIED + fails, FOLDER=str(tmp_path))
    ended(result, left=3)


def test_a_rank_is_lost_while_it_gives_its_state_to_others(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    """Rank 0 alone commits step 7. The others, who take its state, must go back to their own."""
    folder = str(tmp_path)
    result = job(run_ranks, 3, FAIL_BEFORE, HAS_APPLIED, LOST="gives@8:0", FOLDER=folder)
    ended(result, left=2)
    assert "rank 0 on host localhost was killed" in result.stderr


def test_a_job_in_which_all_have_lost_their_values_ends(run_ranks: RunRanks) -> None:
    operation = "if step == 7: hvd.allreduce(torch.ones(1), name='loss')"
    result = job(run_ranks, 3, after=operation, LOST="after step@7:1")
    assert result.returncode != 0
    assert "well" not in result.stdout
    assert "no rank has the state of the last commit" in result.stderr
