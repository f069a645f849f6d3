"""A rank of an elastic job: adds up samples, and checks that each has counted once.

python elastic_job.py [--step-seconds S] [--commit-every N]

It writes JSON lines: "ready" with its process before it trains, "began" once it does, and "well"
with the weights at the end. The weights depend on the samples of each step and on the order of the
steps; an undisturbed run with the same samples has the same.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from typing import Any

import numpy as np

import perseus_core as core
from perseus.common.elastic import run_fn
from perseus.common.elastic_sampler import ElasticSampler
from perseus.common.handled_state import SAMPLERS, HandledState
from perseus.common.objects import allgather_object, broadcast_object
from perseus.common.process_sets import global_process_set

SAMPLES, EPOCHS, BATCH = 400, 3, 2
PRIME = (1 << 31) - 1


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, "pid": os.getpid(), **more}), flush=True)


def value(sample: int) -> int:
    return sample * 7919 % 10007


def after_step(weights: int, samples: list[int]) -> int:
    return (weights * 31 + sum(map(value, samples))) % PRIME


def broadcast(obj: Any) -> Any:
    return broadcast_object(obj, 0, "state", global_process_set)


def reset() -> None:
    core.shutdown()
    core.init()


class Training:
    def __init__(self, seconds_of_a_step: float, commit_every: int) -> None:
        self._seconds = seconds_of_a_step
        self._commit_every = commit_every

    def train(self, state: Any) -> None:
        say("began", size=core.size())
        while state.epoch < EPOCHS:
            state.sampler.set_epoch(state.epoch)
            own = list(state.sampler)
            for first in range(0, len(own), BATCH):
                self._step(state, first, own[first : first + BATCH])
            state.epoch += 1

    def _step(self, state: Any, first: int, own: list[int]) -> None:
        parts = allgather_object(own, "samples", global_process_set)
        samples = sorted(sample for part in parts for sample in part)
        gradient = np.array([sum(map(value, own))], np.int64)
        total = int(core.allreduce(gradient, core.ReduceOp.SUM, name="gradient")[0])
        assert total == sum(map(value, samples)), (total, samples)
        state.weights = (state.weights * 31 + total) % PRIME
        state.steps = [*state.steps, (state.epoch, samples)]
        state.sampler.record_batch(first, BATCH)
        time.sleep(self._seconds)
        if len(state.steps) % self._commit_every == 0:
            state.commit()


def check(state: Any) -> None:
    """Every sample has counted once in each epoch, but for those that the last one leaves over."""
    seen = Counter((epoch, sample) for epoch, samples in state.steps for sample in samples)
    counts = Counter(sample for _, sample in seen.elements())
    state.sampler.set_epoch(EPOCHS)
    counts.update(state.sampler.carried)
    assert counts == dict.fromkeys(range(SAMPLES), EPOCHS), counts
    weights = 0
    for _, samples in state.steps:
        weights = after_step(weights, samples)
    assert weights == state.weights


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-seconds", type=float, default=0.01)
    parser.add_argument("--commit-every", type=int, default=1)
    args = parser.parse_args()
    say("ready", slot=os.environ["PERSEUS_LOCAL_RANK"])
    core.init()
    sampler = ElasticSampler(range(SAMPLES), last_round="carry")
    values = {"sampler": sampler, "epoch": 0, "weights": 0, "steps": []}
    state = HandledState(broadcast, SAMPLERS, values)
    run_fn(Training(args.step_seconds, args.commit_every).train, reset)(state)
    check(state)
    say("well", weights=state.weights, steps=len(state.steps), size=core.size())


if __name__ == "__main__":
    main()
