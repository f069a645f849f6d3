"""Ranks are killed in an epoch's middle, and the survivors' model has seen each sample once."""

from __future__ import annotations

import os

import pytest
from conftest import RunRanks

pytest.importorskip("torch")

#: The model is the list of samples that it has seen. LOST has "place:rank" for ranks as launched.
TRAINING = """
import os, signal, sys
from collections import Counter
import perseus.torch.horovod as hvd

launched = os.environ["PERSEUS_RANK"]
lost = os.environ["LOST"].split()
before = os.environ["SET_EPOCH"] == "before"
data, epochs, batch = range(103), 3, 4
resets = []
hvd.init()

def perhaps_die(place):
    if f"{place}:{launched}" in lost:
        os.kill(os.getpid(), signal.SIGKILL)

def in_reset():
    resets.append(hvd.size())
    perhaps_die(f"reset{len(resets)}")

@hvd.elastic.run
def train(state):
    while state.epoch < epochs:
        if before:
            state.sampler.set_epoch(state.epoch)
        own = list(state.sampler)
        for i in range(0, len(own), batch):
            perhaps_die(f"step{state.step}")
            samples = hvd.allgather_object(own[i : i + batch], name="samples")
            state.seen = [*state.seen, *((state.epoch, each) for part in samples for each in part)]
            state.sampler.record_batch(i, batch)
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
                perhaps_die(f"commit{state.step}")
        state.epoch += 1
        if not before:
            state.sampler.set_epoch(state.epoch)
    return state.seen

sampler = hvd.elastic.ElasticSampler(data, last_round="carry")
state = hvd.elastic.TorchState(sampler=sampler, epoch=0, step=0, seen=[])
state.register_reset_callbacks([in_reset])
seen = Counter(sample for _, sample in train(state))
sampler.set_epoch(epochs)
assert len(sampler.carried) < hvd.size(), sampler.carried
seen.update(sampler.carried)
assert seen == dict.fromkeys(data, epochs), seen
print("well", hvd.size(), state.step, flush=True)
"""


@pytest.mark.parametrize(
    ("set_epoch", "ranks", "lost"),
    [
        ("before", 4, "step3:1 step9:0"),
        ("after", 4, "step3:1 step9:0"),
        ("before", 4, "step7:0 step7:2"),  # two at once, in the last step of an epoch
        ("after", 5, "commit4:1 step9:0 reset2:3"),  # the last in the recovery from the one before
    ],
)
def test_each_sample_is_seen_once(
    run_ranks: RunRanks, set_epoch: str, ranks: int, lost: str
) -> None:
    environment = {**os.environ, "LOST": lost, "SET_EPOCH": set_epoch}
    result = run_ranks(ranks, TRAINING, options=("--min-np", "2"), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well 2 ") == 2, result.stdout
