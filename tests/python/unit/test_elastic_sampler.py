"""ElasticSampler deals each sample once in what survives of a job's history."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from elastic_story import Plan, Story

from perseus.common import elastic_sampler
from perseus.common.elastic_sampler import ElasticSampler
from perseus.common.handled_state import SAMPLERS, HandledState

STORIES = 300


def told(seed: int, last_round: str, by_indices: bool, patch: pytest.MonkeyPatch) -> Story:
    story = Story(seed, Plan.drawn(random.Random(seed), last_round, by_indices), patch)
    story.run()
    for rank in story.ranks:
        assert rank.model == story.ranks[0].model
    return story


def of_epoch(story: Story, epoch: int) -> Counter[int]:
    return Counter(sample for each, sample in story.ranks[0].model if each == epoch)


@pytest.mark.parametrize("by_indices", [False, True])
def test_each_sample_is_seen_once(by_indices: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: Counter[str] = Counter()
    for seed in range(STORIES):
        story = told(seed, "short", by_indices, monkeypatch)
        for epoch in range(story.plan.epochs):
            once = Counter(range(story.plan.length))
            assert of_epoch(story, epoch) == once, (seed, epoch, story.plan, story.events)
        happened.update(word for event in story.events for word in event.split())
    # The stories are worth telling.
    assert all(happened[word] > 50 for word in ("died", "joined", "sync", "resumed")), happened


def test_only_the_last_round_repeats_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(STORIES):
        story = told(seed, "repeat", False, monkeypatch)
        for epoch in range(story.plan.epochs):
            seen = of_epoch(story, epoch)
            assert sorted(seen) == list(range(story.plan.length)), (seed, epoch, story.events)
            assert seen.total() - len(seen) < story.most_ranks, (seed, epoch, story.events)


def test_what_is_left_over_comes_first_in_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(STORIES):
        story = told(seed, "carry", False, monkeypatch)
        seen = Counter(sample for _, sample in story.ranks[0].model)
        left = Counter(story.left_over())
        assert left.total() < len(story.ranks)
        wanted = {sample: story.plan.epochs for sample in range(story.plan.length)}
        assert seen + left == Counter(wanted), (seed, story.plan, story.events)


class World:
    rank, size = 0, 2


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(elastic_sampler, "rank", lambda: world.rank)
    monkeypatch.setattr(elastic_sampler, "size", lambda: world.size)
    return world


def dealt(sampler: ElasticSampler, world: World) -> list[list[int]]:
    """What each rank of the world gets."""
    parts = []
    for rank in range(world.size):
        world.rank = rank
        sampler.reset()
        parts.append(list(sampler))
        assert len(sampler) == len(parts[-1])
    world.rank = 0
    sampler.reset()
    return parts


@pytest.mark.parametrize(
    ("last_round", "parts"),
    [
        ("repeat", [[0, 3], [1, 4], [2, 0]]),
        ("short", [[0, 3], [1, 4], [2]]),
        ("carry", [[0], [1], [2]]),
    ],
)
def test_the_last_round_of_five_samples(
    world: World, last_round: str, parts: list[list[int]]
) -> None:
    world.size = 3
    sampler = ElasticSampler(range(5), shuffle=False, last_round=last_round)
    assert dealt(sampler, world) == parts
    sampler.record_batch(0, 10)  # more than there are
    assert sampler.processed_num == (3 if last_round == "carry" else 5)
    sampler.set_epoch(1)
    assert sampler.remaining_indices == [3, 4, 0, 1, 2, 3, 4][0 if last_round == "carry" else 2 :]


def test_fewer_samples_than_ranks_are_repeated_as_often_as_it_takes(world: World) -> None:
    world.size = 5
    sampler = ElasticSampler(range(2), shuffle=False)
    assert dealt(sampler, world) == [[0], [1], [0], [1], [0]]


def test_the_order_depends_on_seed_and_epoch_only(world: World) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = ElasticSampler(range(50), seed=seed)
        sampler.set_epoch(epoch)
        return sampler.remaining_indices

    first = order(3, 1)
    world.size = 4
    assert order(3, 1) == first == order(4, 0)
    assert order(3, 2) != first
    horovod_s = list(range(50))
    random.Random(4).shuffle(horovod_s)
    assert first == horovod_s


def test_an_epoch_that_goes_on_may_be_set_again(world: World) -> None:
    sampler = ElasticSampler(range(8), shuffle=False)
    sampler.set_epoch(3)
    sampler.record_batch(0, 1)
    sampler.set_epoch(3)  # nothing has been lost: as in Horovod, this starts anew
    assert sampler.processed_num == 0
    sampler.record_batch(0, 2)
    sampler.reset()
    sampler.set_epoch(3)
    assert sampler.remaining_indices == [4, 5, 6, 7]
    sampler.set_epoch(4)
    assert len(sampler.remaining_indices) == 8
    # An epoch that has come to its end stays so until it has been gone through.
    sampler.record_batch(0, 4)
    sampler.load_state_dict(sampler.state_dict())
    sampler.set_epoch(4)
    assert list(sampler) == []
    sampler.set_epoch(4)
    assert len(sampler.remaining_indices) == 8


def test_the_state_of_horovod_s_sampler_is_understood(world: World) -> None:
    sampler = ElasticSampler(range(8), shuffle=False)
    sampler.load_state_dict({"epoch": 2, "processed_num": 6})
    assert (sampler.epoch, sampler.remaining_indices) == (2, [6, 7])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ElasticSampler(range(7), seed=1), "the length of .* is 7; it must be 8, .* epoch 2"),
        (ElasticSampler(range(8), seed=2), "the seed of .* is 2; it must be 1, .* epoch 2"),
        (ElasticSampler(range(8), False, 1), "the shuffle of .* is False; it must be True"),
    ],
)
def test_an_epoch_goes_on_in_its_order_only(
    world: World, other: ElasticSampler, message: str
) -> None:
    sampler = ElasticSampler(range(8), seed=1)
    sampler.set_epoch(2)
    other.load_state_dict(sampler.state_dict())  # nothing is processed yet
    sampler.record_batch(0, 1)
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(sampler.state_dict())


def test_a_dataset_may_grow_between_epochs_only(world: World) -> None:
    data = [0, 1, 2, 3]
    sampler = ElasticSampler(data, shuffle=False)
    data.append(4)
    assert sampler.remaining_indices == [0, 1, 2, 3, 4]
    sampler.record_batch(0, 1)
    data.append(5)
    sampler.reset()
    with pytest.raises(ValueError, match="length of an ElasticSampler is 6; it must be 5"):
        list(sampler)
    sampler.set_epoch(1)
    assert len(sampler.remaining_indices) == 6


def test_an_epoch_is_counted_in_one_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perseus_core.allgather", lambda mine, name: mine)
    sampler = ElasticSampler(range(8), shuffle=False)
    sampler.record_indices([2, 5])
    with pytest.raises(ValueError, match="epoch 0 is counted by record_indices; it must be"):
        sampler.record_batch(0, 1)
    sampler.reset()
    assert sampler.remaining_indices == [0, 1, 3, 4, 6, 7]
    sampler.set_epoch(1)
    sampler.record_batch(0, 1)
    with pytest.raises(ValueError, match="epoch 1 is counted by record_batch; it must be"):
        sampler.record_indices([4])
    with pytest.raises(ValueError, match='last_round is "carry"; record_indices must have'):
        ElasticSampler(range(8), last_round="carry").record_indices([4])


def test_ranks_that_counted_apart_join(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    behind, ahead = (ElasticSampler(range(9), shuffle=False) for _ in range(2))
    ahead.record_batch(0, 2)
    monkeypatch.setattr(
        elastic_sampler,
        "allgather_object",
        lambda *args: [behind.state_dict(), ahead.state_dict()],
    )
    behind.join_progress()
    assert behind.state_dict() == ahead.state_dict()
    other = ElasticSampler(range(9), seed=5)
    monkeypatch.setattr(
        elastic_sampler,
        "allgather_object",
        lambda *args: [behind.state_dict(), other.state_dict()],
    )
    with pytest.raises(ValueError, match="on rank 1; it must be False, as on rank 0"):
        behind.join_progress()


def test_a_state_that_is_reset_divides_its_samples_anew(world: World) -> None:
    sampler = ElasticSampler(range(9), shuffle=False)
    state = HandledState(lambda plain: plain, SAMPLERS, {"sampler": sampler, "step": 0})
    assert list(sampler) == [0, 2, 4, 6, 8]
    sampler.record_batch(0, 1)
    state.save()
    world.rank, world.size = 1, 3
    state.on_reset()
    assert list(sampler) == [3, 6, 2]


def test_a_wrong_last_round_is_refused() -> None:
    with pytest.raises(ValueError, match="last_round is 'drop'; it must be one of 'repeat'"):
        ElasticSampler(range(3), last_round="drop")
