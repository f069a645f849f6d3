"""Deals the samples of an epoch to the ranks, also when ranks come and go in its middle.

All ranks count in step, so that each knows what all have processed without being told: the samples
left are dealt in turn, and k samples of each rank are the first k * size of those left.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

import perseus_core
from perseus.common.objects import allgather_object
from perseus.common.process_sets import global_process_set
from perseus_core import rank, size
from perseus_core.arguments import whole_number

__all__ = ["ElasticSampler", "LastRound"]

#: What the order of an epoch depends on, besides its number.
_ORDER = ("length", "shuffle", "seed")


class LastRound(Enum):
    """How the last round of an epoch is dealt, if fewer samples are left than there are ranks."""

    REPEAT = "repeat"
    SHORT = "short"
    CARRY = "carry"


@dataclass(frozen=True)
class _Deal:
    """The samples that were left when they were divided, and this rank's place in the division."""

    rank: int
    num_replicas: int
    #: how many samples had been processed before
    start: int
    remaining: list[int]
    #: how many samples all ranks together get; with REPEAT, some of them are dealt twice
    dealt: int

    @classmethod
    def of(cls, start: int, remaining: list[int], last_round: LastRound) -> _Deal:
        ranks = size()
        left_over = len(remaining) % ranks
        dealt = len(remaining)
        if last_round is LastRound.CARRY:
            dealt -= left_over
        elif last_round is LastRound.REPEAT and left_over:
            dealt += ranks - left_over
        return cls(rank(), ranks, start, remaining, dealt)

    @property
    def end(self) -> int:
        """How many samples are processed when all that are dealt are."""
        return self.start + min(self.dealt, len(self.remaining))

    def own(self) -> Iterator[int]:
        left = self.remaining
        return (left[i % len(left)] for i in range(self.rank, self.dealt, self.num_replicas))

    def __len__(self) -> int:
        return len(range(self.rank, self.dealt, self.num_replicas))


class ElasticSampler:
    """Gives each rank its part of the remaining samples of the epoch. Use it after init.

    Call record_batch after each batch, before the commit, and set_epoch for each epoch. A state
    that is restored takes back what was recorded since its commit, because the model forgets these
    samples, too. All ranks must give the same arguments.

    Args:
      dataset: has a length, which must not change within an epoch.
      shuffle: False for the order of the dataset.
      seed: the order depends on seed + epoch only.
      last_round: what happens if the samples left are not a multiple of the ranks: "repeat" deals
        some of them twice, so that all ranks get equally many; "short" gives some ranks one less;
        "carry" leaves what is not processed to be the first of the next epoch, so that all ranks
        get equally many and no sample is repeated or lost.

    Attributes:
      epoch: determines the order of the samples.
      processed_num: how many samples of this epoch all ranks together have processed.
      processed_indices: the samples that record_indices has counted.
      carried: samples that the epoch before has left to this one.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int = 0,
        last_round: str | LastRound = "repeat",
    ) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.last_round = _checked_last_round(last_round)
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self.carried: tuple[int, ...] = ()
        self._length = len(dataset)
        self._goes_on = False
        self._order: tuple[Any, list[int]] = (None, [])
        self._present_deal: _Deal | None = None

    def set_epoch(self, epoch: int) -> None:
        """Starts an epoch, of which nothing is processed.

        An epoch that goes on after ranks were lost or joined, or from a checkpoint, keeps what is
        processed. So a loop may call this before each epoch or after it.

        Raises TypeError if `epoch` is no whole number.
        """
        epoch = whole_number("epoch", epoch)
        if epoch == self.epoch and self._goes_on:
            return
        if epoch != self.epoch and self.last_round is LastRound.CARRY:
            follows = epoch == self.epoch + 1 and (self.processed_num > 0 or len(self) == 0)
            self.carried = tuple(self._unprocessed()) if follows else ()
        self.epoch = epoch
        self.processed_num = 0
        self.processed_indices = set()
        self._goes_on = False
        self._present_deal = None

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch as processed on every rank.

        Args:
          batch_idx: 0 or more; not needed, but Horovod has it.
          batch_size: how many samples each rank has processed, the same number on all ranks. If a
            rank's last batch is shorter than those of others, give that of the others.

        Raises ValueError if record_indices has counted in this epoch, or for a negative number.
        """
        for name, number in (("batch_idx", batch_idx), ("batch_size", batch_size)):
            if whole_number(name, number) < 0:
                raise ValueError(f"{name} is {number}; it must be 0 or more")
        if self.processed_indices:
            raise ValueError(
                f"epoch {self.epoch} is counted by record_indices; it must be counted by that or "
                "by record_batch, not by both"
            )
        deal = self._deal()
        self.processed_num = min(self.processed_num + batch_size * deal.num_replicas, deal.end)
        self._goes_on = False

    def record_indices(self, indices: Iterable[int]) -> None:
        """Counts the samples that any rank gives as processed.

        This is for ranks that do not process equally many, or that choose their samples themselves.
        All ranks must call it at the same time, because it tells them the indices of all; a rank
        that has processed nothing gives none.

        Raises ValueError if record_batch has counted in this epoch, or for last_round="carry",
        whose epochs may have a sample twice.
        """
        if self.last_round is LastRound.CARRY:
            raise ValueError('last_round is "carry"; record_indices must have "repeat" or "short"')
        if self.processed_num > len(self.processed_indices):
            raise ValueError(
                f"epoch {self.epoch} is counted by record_batch; it must be counted by that or by "
                "record_indices, not by both"
            )
        mine = np.fromiter(indices, np.int64)
        of_all = perseus_core.allgather(mine, name="perseus.elastic_sampler.indices")
        self.processed_indices.update(of_all.tolist())
        self.processed_num = len(self.processed_indices)
        self._goes_on = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch, how much of it is processed, and what its order depends on."""
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": tuple(sorted(self.processed_indices)),
            "carried": self.carried,
            "length": self._length,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from what state_dict returned, in this job or another, of any number of ranks.

        Horovod's form, which has only epoch and processed_num, is understood.

        Raises ValueError if the samples of an epoch that is begun would come in another order, and
        for what no sampler's state_dict has returned.
        """
        if not isinstance(state_dict, Mapping) or not {"epoch", "processed_num"} <= set(state_dict):
            has = list(state_dict) if isinstance(state_dict, Mapping) else repr(state_dict)
            raise ValueError(
                f"state_dict is or has {has}; it must have epoch and processed_num, as what "
                "ElasticSampler.state_dict returns"
            )
        for name in ("epoch", "processed_num"):
            whole_number(f"the {name} of state_dict", state_dict[name])
        carried = tuple(state_dict.get("carried", ()))
        if state_dict["processed_num"] or carried:
            self._check_order(state_dict)
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.processed_indices = set(state_dict.get("processed_indices", ()))
        self.carried = carried
        self._length = state_dict.get("length", self._length)
        self.reset()

    def join_progress(self) -> None:
        """Counts what any rank has counted as processed. All ranks must call it at the same time.

        Raises ValueError on all ranks if their samples would not be dealt from the same order.
        """
        mine = {**self.state_dict(), "length": len(self.dataset)}
        states = allgather_object(mine, None, global_process_set)
        for number, state in enumerate(states):
            for name in _ORDER:
                if state[name] != states[0][name]:
                    raise ValueError(
                        f"the {name} of an ElasticSampler is {state[name]} on rank {number}; it "
                        f"must be {states[0][name]}, as on rank 0"
                    )
        self.load_state_dict(_joined(states))

    def reset(self) -> None:
        """Divides the remaining samples among the present ranks, as soon as they are needed."""
        self._goes_on = True
        self._present_deal = None

    @property
    def rank(self) -> int:
        """This rank's place in the division."""
        return self._deal().rank

    @property
    def num_replicas(self) -> int:
        """How many ranks share the remaining samples."""
        return self._deal().num_replicas

    @property
    def remaining_indices(self) -> list[int]:
        """The samples that were left when they were divided, in the epoch's order."""
        return self._deal().remaining

    @property
    def num_samples(self) -> int:
        """How many samples this rank gets."""
        return len(self._deal())

    @property
    def total_size(self) -> int:
        """How many samples all ranks get, with those that are dealt twice."""
        return self._deal().dealt

    def __iter__(self) -> Iterator[int]:
        deal = self._deal()
        if not deal.dealt:
            self._goes_on = False  # the epoch has come to its end
        return deal.own()

    def __len__(self) -> int:
        return self.num_samples

    def _deal(self) -> _Deal:
        if self._present_deal is None:
            left = self._unprocessed()
            self._present_deal = _Deal.of(self.processed_num, left, self.last_round)
        return self._present_deal

    def _unprocessed(self) -> list[int]:
        if self.processed_indices:
            return [i for i in self._in_order() if i not in self.processed_indices]
        return self._in_order()[self.processed_num :]

    def _in_order(self) -> list[int]:
        """Returns all samples of the epoch. They are kept, as to shuffle many takes long."""
        length = len(self.dataset)
        if self.processed_num or self.carried:
            self._check_order({"epoch": self.epoch, "length": self._length})
        self._length = length
        key = (length, self.shuffle, self.seed + self.epoch, self.carried)
        if key != self._order[0]:
            indices = list(range(length))
            if self.shuffle:
                random.Random(self.seed + self.epoch).shuffle(indices)
            self._order = (key, [*self.carried, *indices])
        return self._order[1]

    def _check_order(self, begun: Mapping[str, Any]) -> None:
        present = {"length": len(self.dataset), "shuffle": self.shuffle, "seed": self.seed}
        for name in _ORDER:
            if begun.get(name, present[name]) != present[name]:
                raise ValueError(
                    f"the {name} of an ElasticSampler is {present[name]}; it must be "
                    f"{begun[name]}, with which epoch {begun['epoch']} was begun"
                )


def _joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the state of the furthest rank, with what others of its epoch have processed."""
    furthest = max(states, key=lambda state: (state["epoch"], state["processed_num"]))
    of_epoch = (state for state in states if state["epoch"] == furthest["epoch"])
    indices = sorted(set().union(*(state["processed_indices"] for state in of_epoch)))
    if not indices:
        return furthest
    return {**furthest, "processed_num": len(indices), "processed_indices": tuple(indices)}


def _checked_last_round(last_round: str | LastRound) -> LastRound:
    try:
        return LastRound(last_round)
    except ValueError:
        choices = ", ".join(repr(each.value) for each in LastRound)
        raise ValueError(f"last_round is {last_round!r}; it must be one of {choices}") from None
