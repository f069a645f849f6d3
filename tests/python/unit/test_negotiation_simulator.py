"""Tests that benchmarks/negotiation simulates the messages of real ranks, in number and size."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from contest import simulation

# Too large to travel with the agreement, since only agreements are simulated.
NAME, SHAPE = "layer1.weight", (33, 5, 7)


# Prints the messages and bytes that this rank sent to agree on a name, first new and then known.
PROGRAM = f"""
import json
import numpy as np
import perseus_core as core

core.init()
counted = []
for _ in range(2):
    before = core.counters()
    core.allreduce(np.zeros({SHAPE}, np.float32), name={NAME!r})
    after = core.counters()
    counters = ("agreement_messages_sent", "agreement_bytes_sent")
    counted.append([after[counter] - before[counter] for counter in counters])
print(json.dumps({{"rank": core.rank(), "counted": counted}}))
core.shutdown()
"""


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_simulated_ranks_send_what_real_ones_send(size, run_ranks):
    result = run_ranks(size, PROGRAM)
    lines = re.findall(r"{.*}", result.stdout)
    by_rank = sorted((json.loads(line) for line in lines), key=lambda found: found["rank"])
    real = [found["counted"] for found in by_rank]
    assert len(real) == size, result.stderr
    simulated = simulation.simulate("perseus", size, [(NAME, SHAPE)], 2, [])
    for round_, row in enumerate(simulated):
        messages, sent = ([rank[round_][i] for rank in real] for i in (0, 1))
        assert row["messages_sent"] == [min(messages), max(messages), messages[0]]
        assert row["bytes_sent"] == [min(sent), max(sent), sent[0]]


def test_a_rank_s_messages_grow_with_the_logarithm_of_the_ranks():
    for hops in (1, 4, 9):
        for size in (2**hops, 2**hops - 1) if hops > 1 else (2,):
            for row in simulation.simulate("perseus", size, [(NAME, SHAPE)], 2, []):
                assert row["messages_sent"] == row["messages_received"] == [hops] * 3


def test_the_coordinator_hears_from_everyone_and_the_cached_mode_does_not():
    (row,) = simulation.simulate("coordinator", 100, [(NAME, SHAPE)], 1, [])
    assert row["messages_received"] == [1, 99, 99]
    (row,) = simulation.simulate("cached-mpi", 64, [(NAME, SHAPE)], 1, [])
    assert row["messages_received"] == [6, 6, 6]
    # 3 segments go through 99 ranks to be summed, and through 99 to be told.
    (row,) = simulation.simulate("cached-gloo", 100, simulation.NAMES["ResNet-50"], 1, [])
    assert row["messages_sent"][1] == 6


def test_virtual_time_is_that_of_the_model():
    """Two ranks of one host: each pays an overhead, the latency, and 1 byte/ns for the data."""
    model = ["spread_ns=0", "inside_bytes_per_ns=1", "inside_overhead_ns=100000"]
    (row,) = simulation.simulate("cached-mpi", 2, [(NAME, SHAPE)], 1, model)
    assert row["time_us"] == pytest.approx(100 + 4 + 0.008 + 100)
    # Rank 0 receives 3 messages one after another, and answers them one after another.
    (row,) = simulation.simulate("coordinator", 4, [(NAME, SHAPE)], 1, model)
    assert row["time_us"] == pytest.approx(8 * 100, rel=0.1)
