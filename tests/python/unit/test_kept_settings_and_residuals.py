"""What outlives a world in its ranks: the tuner's findings, and the residuals of lossy codecs."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import pytest
from conftest import RunRanks

#: Has tuned before rank 1 is killed, and tunes again in the next world.
TUNED = """
import os, signal, numpy, perseus_core as core
launched = int(os.environ["PERSEUS_RANK"])
core.init()
values = numpy.ones(1 << 20, numpy.float32)
step, dies_at = 0, 80
while step < 160:
    try:
        if step == dies_at and os.environ.get("LOST") == str(launched):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == dies_at and "LOST" not in os.environ:
            dies_at = -1
            core.shutdown()
            core.init()
        total = core.allreduce(values, core.ReduceOp.SUM, name="total")
        assert (total == core.size()).all()
        step += 1
    except core.HorovodInternalError:
        core.shutdown()
        core.init()
        step = int(core.allreduce(numpy.array(step), core.ReduceOp.MIN, name="step"))
shards = core.counters()["shards"]
core.allreduce(values, core.ReduceOp.SUM, name="total")
shards = core.counters()["shards"] - shards
assert (core.allgather(numpy.array([shards])) == shards).all()  # all use the same settings
core.shutdown()
print("well", flush=True)
"""


def rows(log: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(log.open()))


def values(row: dict[str, str]) -> list[str]:
    return [row[name] for name in ("streams", "shard_mib", "merge_mib", "credit_mib", "chunk_kib")]


@pytest.mark.parametrize("ranks", [3, 4])
def test_survivors_go_on_with_tuned_settings(
    run_ranks: RunRanks, tmp_path: Path, ranks: int
) -> None:
    log = tmp_path / "tuning.csv"
    environment = {**os.environ, "LOST": "1", "PERSEUS_TUNING_LOG": str(log)}
    result = run_ranks(ranks, TUNED, options=("--min-np", "2"), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == ranks - 1
    told = [row["trial"] for row in rows(log)]
    kept, taken_over = told.index("kept"), told.index("taken over")
    assert kept + 1 == taken_over
    assert values(rows(log)[taken_over]) == values(rows(log)[kept])
    # It tries what was kept first, and ends in as many steps as the first time.
    again = rows(log)[taken_over + 1 :]
    assert again[0]["trial"] == "0"
    assert values(again[0]) == values(rows(log)[kept])
    assert again[-1]["trial"] == "kept"
    assert int(again[-1]["steps"]) <= 60


def test_a_world_of_the_same_size_does_not_tune_again(run_ranks: RunRanks, tmp_path: Path) -> None:
    log = tmp_path / "tuning.csv"
    environment = {**os.environ, "PERSEUS_TUNING_LOG": str(log)}
    result = run_ranks(2, TUNED, environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    told = [row["trial"] for row in rows(log)]
    assert told[-2:] == ["kept", "taken over"]
    assert values(rows(log)[-1]) == values(rows(log)[-2])


#: Two ranks tune; a third one joins, which has found nothing.
JOINED = """
import os, pickle, numpy, perseus_core as core
from perseus.common.elastic import ObjectState, run_fn

core.init()
values = numpy.ones(1 << 20, numpy.float32)


def broadcast(value):
    data = numpy.frombuffer(pickle.dumps(value), numpy.uint8)
    size = int(core.broadcast(numpy.array(len(data)), 0, name="size"))
    data = data if core.rank() == 0 else numpy.empty(size, numpy.uint8)
    return pickle.loads(core.broadcast(data, 0, name="state").tobytes())


def train(state):
    while core.size() == 2:
        core.allreduce(values, core.ReduceOp.SUM, name="total")
        state.step += 1
        if state.step == 80 and core.rank() == 0:
            with open(os.environ["HOSTS"] + ".new", "w") as file: file.write("localhost:3\\n")
            os.replace(file.name, os.environ["HOSTS"])
        state.commit()
    shards = core.counters()["shards"]
    core.allreduce(values, core.ReduceOp.SUM, name="total")
    shards = core.counters()["shards"] - shards
    assert (core.allgather(numpy.array([shards])) == shards).all()


state = ObjectState(broadcast, core.rank, step=0)
run_fn(train, lambda: (core.shutdown(), core.init()))(state)
core.shutdown()
print("well", flush=True)
"""


def test_a_rank_that_joins_goes_on_from_what_the_others_have_found(
    run_ranks: RunRanks, tmp_path: Path
) -> None:
    hosts, log = tmp_path / "hosts", tmp_path / "tuning.csv"
    hosts.write_text("localhost:2\n")
    environment = {**os.environ, "HOSTS": str(hosts), "PERSEUS_TUNING_LOG": str(log)}
    environment["PERSEUS_LOG_LEVEL"] = "info"
    options = ("--min-np", "2", "--max-np", "3", "--watch-hostfile", str(hosts))
    result = run_ranks(2, JOINED, options=options, environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == 3, result.stdout + result.stderr
    assert (result.stdout + result.stderr).count("as tuned in the last world") == 3
    told = [row["trial"] for row in rows(log)]
    assert told[-2:] == ["kept", "taken over"]
    assert values(rows(log)[-1]) == values(rows(log)[-2])


#: A codec that rounds to quarters, so that sums lose nothing more.
QUARTERS = """
#include <math.h>
#include <stddef.h>
size_t encoded_size(void* user, size_t elements) { return elements * sizeof(float); }
void encode(void* user, const float* in, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = roundf(in[i] * 4) / 4;
}
void decode(void* user, const float* in, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = in[i];
}
"""

#: Adds up gradients of all ranks, in an elastic loop that commits every fourth step.
TRAINING = """
import ctypes, os, signal, sys, numpy, perseus_core as core
from perseus.common.elastic import ObjectState, run_fn
from perseus.common import objects

codec = ctypes.CDLL(os.environ["CODEC"])
quarters = core.register_codec(
    "quarters", codec.encoded_size, codec.encode, codec.decode, error_feedback=True
)
launched = int(os.environ["PERSEUS_RANK"])
ELEMENTS = 50_000
core.init()


def gradient(rank, step):
    mixed = (numpy.arange(ELEMENTS) * 37 + step * 101 + rank * 59) % 97
    return ((mixed - 48) / 16).astype(numpy.float32)


def broadcast(value):
    import pickle
    data = numpy.frombuffer(pickle.dumps(value), numpy.uint8)
    size = int(core.broadcast(numpy.array(len(data)), 0, name="size"))
    data = data if core.rank() == 0 else numpy.empty(size, numpy.uint8)
    return pickle.loads(core.broadcast(data, 0, name="state").tobytes())


state = ObjectState(broadcast, core.rank, step=0, model=numpy.zeros(ELEMENTS), summed=[])


@lambda train: run_fn(train, lambda: (core.shutdown(), core.init()))
def train(state):
    while state.step < 24:
        if state.step == 14 and os.environ["LOST"] == str(launched):
            os.kill(os.getpid(), signal.SIGKILL)
        mine = gradient(launched, state.step)
        applied = core.allreduce(mine, core.ReduceOp.SUM, name="gradient", codec=quarters)
        state.model = state.model + applied.astype(numpy.float64)
        state.summed = [*state.summed, core.size()]
        state.step += 1
        if state.step % 4 == 0:
            state.commit()


train(state)
assert state.summed == [LAUNCHED] * 12 + [LAUNCHED - 1] * 12, state.summed

# What each rank has sent and what it keeps, in float64.
model = numpy.zeros(ELEMENTS)
kept = [numpy.zeros(ELEMENTS) for _ in range(LAUNCHED)]
for step in range(24):
    for rank in range(LAUNCHED):
        if step >= 12 and rank == int(os.environ["LOST"]): continue
        whole = gradient(rank, step).astype(numpy.float64) + kept[rank]
        sent = numpy.trunc(whole * 4 + numpy.copysign(0.5, whole)) / 4
        kept[rank] = whole - sent
        model += sent
assert (state.model == model).all(), numpy.flatnonzero(state.model != model)
core.shutdown()
print("well", flush=True)
"""


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("codec") / "quarters.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-xc", "-", "-o", str(library), "-lm"]
    subprocess.run(command, input=QUARTERS, text=True, check=True, timeout=60)
    return library


@pytest.mark.parametrize(("ranks", "lost"), [(3, 2), (4, 1)])
def test_survivors_keep_the_residuals_of_the_commit(
    run_ranks: RunRanks, codec: Path, ranks: int, lost: int
) -> None:
    environment = {**os.environ, "CODEC": str(codec), "LOST": str(lost)}
    program = TRAINING.replace("LAUNCHED", str(ranks))
    result = run_ranks(ranks, program, options=("--min-np", "2"), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == ranks - 1
