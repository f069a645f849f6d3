"""The simulator of allreduces under several caches, which benchmarks/sockets.py prints."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("contest.sockets")


def costs(sockets: ModuleType, **changed: float) -> object:
    free = dict.fromkeys((field.name for field in dataclasses.fields(sockets.Costs)), 0.0)
    return sockets.Costs(**{**free, **changed})


def nanoseconds(
    sockets: ModuleType, cache_of: list[int], size: int, form: str, **changed: float
) -> int:
    return round(sockets.simulate(costs(sockets, **changed), cache_of, size, form)[0])


def test_two_ranks_exchange_small_inputs_in_one_hop(sockets: ModuleType) -> None:
    # Each copies 4 bytes, tells the other, waits for its line, and adds what it reads.
    changed = {"cached_byte": 1.0, "memory_byte": 1.0, "message": 50.0, "message_lines": 3.0}
    assert nanoseconds(sockets, [0, 0], 4, "flat", near_line=30.0, **changed) == 54 + 3 * 30 + 54
    assert nanoseconds(sockets, [0, 1], 4, "flat", far_line=150.0, **changed) == 54 + 3 * 150 + 54


def test_a_processor_does_the_work_of_its_ranks_one_after_the_other(sockets: ModuleType) -> None:
    each = costs(sockets, message=50.0)
    alone = sockets.simulate(each, [0, 0], 4, "flat")[0]
    together = sockets.simulate(each, [0, 0], 4, "flat", processors=1)[0]
    assert together == pytest.approx(2 * alone, abs=1.0)


def test_grouped_ranks_read_each_byte_once_from_the_other_cache(sockets: ModuleType) -> None:
    cache_of, size = [0] * 4 + [1] * 4, 256 << 10
    lines = {
        form: sockets.simulate(costs(sockets), cache_of, size, form)[1] for form in sockets.FORMS
    }
    part = size // 8 // 64
    # Contributions of the four ranks there, and at most the results of all four, if no other rank
    # of this cache has read them before.
    assert 4 * part < lines["flat"] <= 8 * part
    # Of a quarter of the buffer, a half as contribution and a half as result.
    assert lines["grouped"] == 2 * part


def test_grouping_pays_where_reading_from_afar_is_slow(sockets: ModuleType) -> None:
    cache_of = [0] * 8 + [1] * 8
    for recorded in sockets.RECORDED.values():
        for size in (65 << 10, 256 << 10, 4 << 20):
            flat = sockets.simulate(recorded, cache_of, size, "flat")[0]
            assert sockets.simulate(recorded, cache_of, size, "grouped")[0] < flat
        # More hops than it saves lines.
        flat = sockets.simulate(recorded, cache_of, 4, "flat")[0]
        assert sockets.simulate(recorded, cache_of, 4, "grouped")[0] > flat


def test_a_link_between_sockets_holds_up_what_crosses_it(sockets: ModuleType) -> None:
    cache_of, size = [0, 0, 1, 1], 256 << 10
    # Half of a buffer's contributions and results of two ranks, at a byte a nanosecond, each way.
    took = nanoseconds(sockets, cache_of, size, "flat", link=1.0)
    assert nanoseconds(sockets, cache_of, size, "flat") == 0.0
    assert took >= size


def test_all_shards_of_a_large_buffer_are_reduced(sockets: ModuleType) -> None:
    one = nanoseconds(sockets, [0, 0], 512 << 10, "flat", memory_byte=1.0)
    assert nanoseconds(sockets, [0, 0], 16 << 20, "flat", memory_byte=1.0) == 32 * one


def test_ranks_under_one_cache_share_it(sockets: ModuleType) -> None:
    changed = {"memory_byte": 1.0, "cache": 32 << 20}
    alone, together = [0, 1], [0, 0]
    assert nanoseconds(sockets, alone, 16 << 20, "flat", **changed) == 0
    assert nanoseconds(sockets, together, 8 << 20, "flat", **changed) == 0
    # Half of the bytes come from memory at a rank's share, and all of them at half as much again.
    half = nanoseconds(sockets, together, 16 << 20, "flat", **changed)
    assert half == pytest.approx(nanoseconds(sockets, alone, 32 << 20, "flat", **changed) / 2)
    whole = nanoseconds(sockets, together, 24 << 20, "flat", **changed)
    assert whole == pytest.approx(3 * half)
