"""A model of an elastic job in one process: its ranks are coroutines, and a story of losses, joins
and drains happens to them. A model's parameters are the list of the samples that it has seen.

It holds the wrapper to its rules: survivors keep their order and go back to their last commit, the
most advanced one gives its state to the others, and a drain or a join happens at a commit.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import perseus_core
from perseus.common import elastic_sampler, objects
from perseus.common.elastic_sampler import ElasticSampler
from perseus.common.handled_state import SAMPLERS, HandledState

#: A sample as the model has seen it: of which epoch, and which.
Seen = list[tuple[int, int]]


@dataclass
class Plan:
    """The same for all ranks of a story."""

    length: int
    epochs: int
    batch: int
    commit_every: int
    last_round: str
    sets_epoch_before: bool
    by_indices: bool

    @classmethod
    def drawn(cls, draw: random.Random, last_round: str, by_indices: bool = False) -> Plan:
        return cls(
            length=draw.choice([draw.randrange(4), draw.randrange(70)]),
            epochs=draw.randint(1, 4),
            batch=draw.randint(1, 5),
            commit_every=draw.randint(1, 4),
            last_round=last_round,
            sets_epoch_before=draw.random() < 0.5,
            by_indices=by_indices,
        )


class Rank:
    """A rank's state: its sampler, and what else a training function keeps."""

    def __init__(self, story: Story, identity: int, is_new: bool) -> None:
        self.plan = story.plan
        self.identity = identity
        self.is_new = is_new
        sampler = ElasticSampler(range(self.plan.length), seed=7, last_round=self.plan.last_round)
        values = {"sampler": sampler, "model": [], "epoch": 0, "step": 0, "commits": 0}
        self.state = HandledState(lambda plain: story.sent_by_root(plain), SAMPLERS, values)

    @property
    def model(self) -> Seen:
        seen: Seen = self.state.model
        return seen

    def plain(self) -> dict[str, Any]:
        return {name: getattr(self.state, name) for name in ("model", "epoch", "step", "commits")}

    def training(self) -> Generator[tuple[str, Any], Any, None]:
        """Yields each collective with its own part, and gets its result."""
        plan, state = self.plan, self.state
        while state.epoch < plan.epochs:
            if plan.sets_epoch_before:
                state.sampler.set_epoch(state.epoch)
            yield from self._an_epoch()
            state.epoch += 1
            if not plan.sets_epoch_before:
                state.sampler.set_epoch(state.epoch)

    def _an_epoch(self) -> Generator[tuple[str, Any], Any, None]:
        state = self.state
        own = list(state.sampler)
        assert len(own) == len(state.sampler)
        size = 1 + self.identity % 3 if self.plan.by_indices else self.plan.batch
        while True:
            batch, own = own[:size], own[size:]
            everybody_s = yield "step", batch
            if not everybody_s:
                return
            state.model = [*state.model, *((state.epoch, sample) for sample in everybody_s)]
            if self.plan.by_indices:
                yield "record", batch
                state.sampler.record_indices(batch)
            else:
                state.sampler.record_batch(0, size)
            state.step += 1
            if state.step % self.plan.commit_every == 0:
                state.commits += 1
                state.save()
                yield "commit", None


class Story:
    """Runs a job to its end. Ranks are drawn to die, to be drained, and to join."""

    def __init__(self, seed: int, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self._draw = random.Random(seed)
        self.plan = plan
        self._present = 0
        self._result: Any = None
        self.ranks = [Rank(self, i, is_new=False) for i in range(self._draw.randint(1, 5))]
        self._root = self.ranks[0]
        self._named = len(self.ranks)
        self.events: list[str] = []
        monkeypatch.setattr(elastic_sampler, "rank", lambda: self._present)
        monkeypatch.setattr(elastic_sampler, "size", lambda: len(self.ranks))
        monkeypatch.setattr(elastic_sampler, "allgather_object", lambda *args: self._result)
        monkeypatch.setattr(objects, "broadcast_object", self._sent_sampler)
        monkeypatch.setattr(perseus_core, "allgather", lambda mine, name: np.array(self._result))

    def run(self) -> None:
        self.most_ranks = len(self.ranks)
        while not self._trained():
            self.most_ranks = max(self.most_ranks, len(self.ranks))

    def sent_by_root(self, plain: dict[str, Any]) -> dict[str, Any]:
        assert plain.keys() == self._root.plain().keys()
        return self._root.plain()

    def _sent_sampler(self, own: Any, *arguments: Any) -> dict[str, Any]:
        sampler: ElasticSampler = self._root.state.sampler
        return sampler.state_dict()

    def left_over(self) -> tuple[int, ...]:
        """What the last epoch leaves to the next one."""
        sampler: ElasticSampler = self.ranks[0].state.sampler
        sampler.set_epoch(self.plan.epochs)
        return sampler.carried

    def _trained(self) -> bool:
        """Runs the training of the present world; False if it has changed."""
        programs = [rank.training() for rank in self.ranks]
        calls = [self._sent(i, programs, None) for i in range(len(programs))]
        while calls[0] is not None:
            kinds = {call[0] for call in calls}
            assert len(kinds) == 1, f"ranks are out of step: {calls}"
            parts = [call[1] for call in calls]
            (kind,) = kinds
            result = None if kind == "commit" else [each for part in parts for each in part]
            if self._happens(0.08):
                self._die(programs, result)
                return False
            if kind == "commit" and self._happens(0.25):
                self._change()
                return False
            calls = [self._sent(i, programs, result) for i in range(len(programs))]
        return True

    def _sent(self, i: int, programs: list[Any], result: Any) -> Any:
        self._present, self._result = i, result
        try:
            return programs[i].send(result)
        except StopIteration:
            return None

    def _happens(self, likelihood: float) -> bool:
        return self._draw.random() < likelihood

    def _die(self, programs: list[Any], result: Any) -> None:
        """Some ranks die in a collective, which some of the others complete."""
        survivors = self._some_are_left(self.ranks)
        for i, rank in enumerate(self.ranks):
            if rank in survivors and self._happens(0.5):
                self._sent(i, programs, result)
        self.events.append(f"{len(self.ranks) - len(survivors)} died")
        for rank in survivors:
            rank.state.restore()
        joiners = self._joiners() if self._happens(0.3) else []
        self._form([*survivors, *joiners])

    def _change(self) -> None:
        """At a commit ranks are drained, or join, or the whole job goes on from a checkpoint."""
        if self._happens(0.2):
            first = self.ranks[0]
            checkpoint = pickle.dumps((first.state.sampler.state_dict(), first.plain()))
            self.ranks = self._joiners()
            self.events.append(f"resumed by {len(self.ranks)}")
            for rank in self.ranks:
                sampler, plain = pickle.loads(checkpoint)
                rank.state.sampler.load_state_dict(sampler)
                for name, value in plain.items():
                    setattr(rank.state, name, value)
                rank.is_new = False
                rank.state.save()
            return
        left = self._some_are_left(self.ranks) if self._happens(0.5) else self.ranks
        joiners = self._joiners() if self._happens(0.5) else []
        self.events.append(f"{len(self.ranks) - len(left)} left, {len(joiners)} joined")
        self._form([*left, *joiners])

    def _joiners(self) -> list[Rank]:
        count = self._draw.randint(1, 3)
        self._named += count
        return [Rank(self, self._named - i, is_new=True) for i in range(count)]

    def _some_are_left(self, ranks: list[Rank]) -> list[Rank]:
        """Always one that has been trained: otherwise the job's state is lost."""
        trained = [rank for rank in ranks if not rank.is_new]
        kept = self._draw.choice(trained)
        return [rank for rank in ranks if rank is kept or self._happens(0.6)]

    def _form(self, ranks: list[Rank]) -> None:
        """Forms a world, in which more ranks may be lost before it trains."""
        self.ranks = ranks
        for rank in ranks:
            rank.state.on_reset()
        trained = [rank for rank in ranks if not rank.is_new]
        self._root = max(trained, key=lambda rank: rank.state.commits)
        most = self._root.state.commits
        if len(trained) < len(ranks) or any(rank.state.commits < most for rank in ranks):
            fails = self._happens(0.2)
            for rank in ranks:
                # A sync that fails is complete on some ranks.
                if not (fails and self._happens(0.5)):
                    rank.state.sync()
                    rank.is_new = False
            if fails:
                self.events.append("lost in sync")
                survivors = self._some_are_left(ranks)
                for rank in survivors:
                    rank.state.restore()
                self._form(survivors)
                return
        self._result = [
            {**rank.state.sampler.state_dict(), "length": self.plan.length} for rank in ranks
        ]
        for rank in ranks:
            rank.state.join_progress()
