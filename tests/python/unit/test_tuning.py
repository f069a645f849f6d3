"""The tuner, in jobs of two ranks that take training steps."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

INIT = """
import numpy, perseus_core
perseus_core.init()
"""
TRAIN = """
gradients = [numpy.ones(n, numpy.float32) for n in (1 << 19, 1000, 1 << 18, 50_000)]
for step in range({steps}):
    handles = [
        perseus_core.allreduce_async(gradient, name=str(i), out=gradient)
        for i, gradient in enumerate(gradients)
    ]
    for handle in handles:
        handle.wait()
"""

STEPS = INIT + TRAIN

# A host for each rank, with TCP between them.
ON_HOSTS = """
import os
os.environ["PERSEUS_HOSTNAME"] = "host" + os.environ["PERSEUS_RANK"]
"""

SETTINGS = ["streams", "shard_mib", "merge_mib", "credit_mib", "chunk_kib"]
COLUMNS = ["trial", "steps", *SETTINGS, "ms_a_mib"]


def trials(
    run_ranks,
    log: Path,
    steps: int = 75,
    script: str = STEPS,
    ranks: int = 2,
    **environment: str,
) -> list[dict[str, str]]:
    """Returns what the tuner tried in this many steps, a row for each trial."""
    environment = {**os.environ, "PERSEUS_TUNING_LOG": str(log), **environment}
    job = run_ranks(ranks, script.format(steps=steps), environment=environment)
    assert job.returncode == 0, job.stderr
    with log.open() as file:
        rows = csv.DictReader(file)
        assert rows.fieldnames == COLUMNS
        return list(rows)


def test_settles_within_sixty_steps_and_begins_with_the_settings(run_ranks, tmp_path) -> None:
    rows = trials(run_ranks, tmp_path / "log.csv", steps=61)
    assert rows[0] == {
        "trial": "0",
        "steps": "12",
        "streams": "4",
        "shard_mib": "0.5",
        "merge_mib": "0.5",
        "credit_mib": "16",
        "chunk_kib": "128",
        "ms_a_mib": rows[0]["ms_a_mib"],
    }
    assert all(float(row["ms_a_mib"]) > 0 for row in rows[:-1])
    assert rows[-1]["trial"] == "kept"
    assert int(rows[-1]["steps"]) <= 60
    tried = [[row[name] for name in SETTINGS] for row in rows]
    assert tried[-1] in tried[:-1]


def test_keeps_its_hands_off_what_is_given_also_where_that_is_the_default(
    run_ranks, tmp_path
) -> None:
    rows = trials(run_ranks, tmp_path / "log.csv", PERSEUS_ALLREDUCE_SHARD="0.5")
    assert {row["shard_mib"] for row in rows} == {"0.5"}
    assert len(rows) > 2, "the others are still tried"


def test_between_hosts_tries_fewer_and_more_connections(run_ranks, tmp_path) -> None:
    rows = trials(run_ranks, tmp_path / "log.csv", script=ON_HOSTS + STEPS)
    assert rows[-1]["trial"] == "kept"
    for name, tried in {
        "streams": {"2", "4", "8"},
        "shard_mib": {"0.5", "1", "4"},
        "merge_mib": {"0.5", "4"},
        "credit_mib": {"16", "64"},
        "chunk_kib": {"32", "128"},
    }.items():
        assert {row[name] for row in rows} == tried


def test_ends_in_a_job_of_small_steps_only(run_ranks, tmp_path) -> None:
    small = (
        INIT
        + """
for step in range(1100):
    # Roll calls, which the engine takes no part in, are not for a call with a handle.
    perseus_core.allreduce_async(numpy.ones(100, numpy.float32), name="small").wait()
"""
    )
    rows = trials(run_ranks, tmp_path / "log.csv", script=small)
    assert [row["trial"] for row in rows] == ["kept"]
    assert rows[0]["streams"] == "4"


UNNAMED = INIT + TRAIN.replace("name=str(i), ", "")


def test_settles_as_soon_where_operations_have_no_names(run_ranks, tmp_path) -> None:
    rows = trials(run_ranks, tmp_path / "log.csv", script=UNNAMED)
    assert rows[-1]["trial"] == "kept"


CHANGING = (
    INIT
    + """
def train(elements, steps):
    for step in range(steps):
        array = numpy.ones(elements, numpy.float32)
        perseus_core.allreduce_async(array, name=f"of {{elements}}").wait()

train(100, 600)
for _ in range(2):
    train(1 << 17, 1000)
    train(1 << 21, 100)
"""
)


@pytest.mark.parametrize("ranks", [2, 3])
def test_tunes_anew_for_work_of_another_size_but_once(run_ranks, tmp_path, ranks: int) -> None:
    rows = trials(run_ranks, tmp_path / "log.csv", script=CHANGING, ranks=ranks)
    kept = [row for row in rows if row["trial"] == "kept"]
    # For the small work, for 512 KiB and for 8 MiB; then the same as before, without a trial.
    assert [row["steps"] == "0" for row in kept] == [False, False, False, True, True], rows
    assert rows[-2:] == kept[-2:]
    for before, again in zip(kept[1:3], kept[3:], strict=True):
        assert {**before, "steps": "0"} == again


def test_the_log_goes_on_after_another_init(run_ranks, tmp_path) -> None:
    again = STEPS + "perseus_core.shutdown()\nperseus_core.init()\n" + TRAIN
    rows = trials(run_ranks, tmp_path / "log.csv", script=again)
    (kept,) = (row for row in rows if row["trial"] == "kept")
    # The second world uses at once what the first has found.
    assert [row["trial"] for row in rows].count("0") == 1
    assert rows[-1]["trial"] == "taken over"
    assert [rows[-1][name] for name in SETTINGS] == [kept[name] for name in SETTINGS]


def test_turned_off_on_one_rank_only_is_named(run_ranks) -> None:
    script = """
import os
if os.environ["PERSEUS_RANK"] == "1": os.environ["HOROVOD_AUTOTUNE"] = "0"
"""
    job = run_ranks(2, script + INIT)
    assert job.returncode != 0
    assert "PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING is '1' on rank 1" in job.stderr


def test_takes_horovods_names(run_ranks, tmp_path) -> None:
    rows = trials(
        run_ranks,
        tmp_path / "log.csv",
        HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES="1",
        HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE="2",
        HOROVOD_AUTOTUNE_WARMUP_SAMPLES="1",
        steps=30,
    )
    assert rows[0]["steps"] == "3"
    assert rows[-1]["trial"] == "kept"
    assert len({tuple(row[name] for name in SETTINGS) for row in rows}) == 2, "one value is tried"


@pytest.mark.parametrize(
    "off", [{"HOROVOD_AUTOTUNE": "0"}, {"PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1"}]
)
def test_can_be_turned_off(run_ranks, tmp_path, off: dict[str, str]) -> None:
    assert trials(run_ranks, tmp_path / "log.csv", **off) == []


REPEATED = (
    INIT
    + """
import random
random.seed(perseus_core.rank())
numpy.random.seed(perseus_core.rank())
inputs = [numpy.random.rand(n).astype(numpy.float32) for n in (1 << 19, 1000, 77_777, 50_000)]
first = {{}}
for step in range(60):
    order = list(enumerate(inputs))
    random.shuffle(order)
    handles = [(i, perseus_core.allreduce_async(tensor, name=str(i))) for i, tensor in order]
    for i, handle in handles:
        result = handle.wait()
        assert result.tobytes() == first.setdefault(i, result.tobytes()), (step, i)
"""
)


def test_without_it_and_without_merging_a_run_repeats_to_the_bit(run_ranks) -> None:
    off = {"PERSEUS_ALLREDUCE_DISABLE_STREAM_TUNING": "1", "PERSEUS_ALLREDUCE_FUSION": "0"}
    job = run_ranks(3, REPEATED.format(), environment={**os.environ, **off})
    assert job.returncode == 0, job.stderr


BESIDE_THE_WORLD = """
import random
import numpy, perseus_core
perseus_core.init()
rank = perseus_core.rank()
pair = perseus_core.add_process_set([0, 1])
tensors = [(str(i), numpy.empty(1 << 18, numpy.float32), 0) for i in range(4)]
if rank < 2:
    tensors += [(f"pair{i}", numpy.empty(1 << 19, numpy.float32), pair) for i in range(6)]
random.seed(rank)
for step in range(100):  # where another set is busy too, trials take longer
    random.shuffle(tensors)
    for _, tensor, _ in tensors:
        tensor.fill(rank + 1)
    handles = [
        perseus_core.allreduce_async(
            tensor, perseus_core.ReduceOp.SUM, name=name, out=tensor, process_set=of
        )
        for name, tensor, of in tensors
    ]
    for handle in handles:
        handle.wait()
    for name, tensor, of in tensors:
        assert (tensor == (6 if of == 0 else 3)).all(), (step, name)
"""


def test_a_set_beside_the_world_plans_alike_on_all_its_ranks(run_ranks, tmp_path) -> None:
    log = tmp_path / "log.csv"
    for _ in range(3):
        job = run_ranks(
            3, BESIDE_THE_WORLD, environment={**os.environ, "PERSEUS_TUNING_LOG": str(log)}
        )
        assert job.returncode == 0, job.stderr
        assert "kept" in log.read_text()
