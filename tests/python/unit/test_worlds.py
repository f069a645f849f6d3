"""Which of the words that arrive on ranks' descriptors are their engines'."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perseus.run.news import Accusation, Met
from perseus.run.worlds import Worlds

MET = [("first", (0, 1, 2)), ("second", (0, 2))]


def has_met(world: str, ranks: Sequence[int]) -> bool:
    return (world, tuple(ranks)) in MET


def lost(world: str, *culprits: int) -> Accusation:
    return Accusation(world, culprits, is_lost=True)


def test_only_worlds_that_have_met_at_the_rendezvous_count() -> None:
    worlds = Worlds(has_met)
    for made_up in (Met("third", [0, 1, 2]), Met("first", [0, 1]), Met("second", [0, 1, 2])):
        assert not worlds.begins(0, made_up)
        assert not worlds.counts(0, lost(made_up.world, 1))
    assert worlds.begins(0, Met("first", [0, 1, 2]))
    assert worlds.counts(0, lost("first", 1))


def test_a_rank_only_blames_members_of_the_world_that_it_is_in() -> None:
    worlds = Worlds(has_met)
    assert worlds.begins(0, Met("first", [0, 1, 2]))
    assert not worlds.counts(1, lost("first", 0)), "it has not said that it is in it"
    assert not worlds.counts(0, lost("first", 1, 3))
    assert worlds.begins(0, Met("second", [0, 2]))
    assert not worlds.counts(0, lost("first", 2))
    assert not worlds.counts(0, lost("second", 1))
    assert worlds.counts(0, lost("second", 2))


def test_what_is_said_in_place_of_an_engine_does_not_silence_it() -> None:
    worlds = Worlds(has_met)
    assert worlds.begins(0, Met("first", [0, 1, 2]))
    for number in range(1000):
        assert not worlds.begins(0, Met(str(number), [0, 1, 2]))
    assert worlds.counts(0, lost("first", 1))


@pytest.mark.parametrize("last", [0, 1, 2])
def test_without_a_rendezvous_of_the_launchers_all_members_must_say_the_same(last: int) -> None:
    worlds = Worlds(None)
    met = Met("world", [0, 1, 2])
    others = {0, 1, 2} - {last}
    for rank in others:
        assert not worlds.begins(rank, met)
        assert not worlds.counts(rank, lost("world", last))
    assert not worlds.begins(last, Met("another", [0, 1, 2]))
    assert worlds.begins(last, met)
    for rank in others:
        assert worlds.counts(rank, lost("world", last))


def test_without_it_a_helper_of_one_rank_can_say_nothing_of_others() -> None:
    worlds = Worlds(None)
    for _ in range(2):
        assert not worlds.begins(0, Met("made up", [0, 1]))
        assert not worlds.counts(0, lost("made up", 1))
    assert not worlds.begins(0, Met("world", [0, 1]))
    assert worlds.begins(1, Met("world", [0, 1]))
    for number in range(1000):
        assert not worlds.begins(0, Met(str(number), [0, 1]))
    assert worlds.counts(0, lost("world", 1))
    assert not worlds.counts(0, lost("999", 1))
