"""Messages between two ranks while ranks of an elastic job die and join."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic_job import Job, finished
from elastic_programs import ELASTIC

#: Trains to step STEPS, and until there are LEAST ranks. In each step, a rank exchanges messages of
#: all sizes with its neighbours. Others are under way when a world ends: what nobody asks for, and
#: what nobody sends. All values name their world.
TRAINING = (
    ELASTIC
    + """
import json, signal

folder, steps, least = os.environ["FOLDER"], int(os.environ["STEPS"]), int(os.environ["LEAST"])
events = json.loads(os.environ["EVENTS"])  # by step: hosts, or the rank at its start that dies
EXCHANGED, NOT_TAKEN, NOT_SENT = 1, 2, 3
SIZES = 10, 3_000, 400_000, 1_500_000
worlds, left_over = 0, []

def reset():
    core.shutdown()
    # What was under way has ended, and what has come is whole and of its world.
    for handle, world in left_over:
        try:
            message = handle.wait(0)
        except core.AbortedError:
            continue
        assert message is None or (message.array == world).all(), message
    left_over.clear()
    core.init()

def happens(what):
    if what.isdigit():
        if os.environ["PERSEUS_RANK"] == what: os.kill(os.getpid(), signal.SIGKILL)
    elif core.rank() == 0:
        with open(os.path.join(folder, "hosts.new"), "w") as file:
            file.write(what.replace(",", "\\n") + "\\n")
        os.replace(file.name, os.path.join(folder, "hosts"))

def exchange(to, from_, value, what):
    sends = [core.isend(np.full(size, value), to, tag=EXCHANGED) for size in SIZES]
    if what: happens(what)
    for size in SIZES:
        array = core.recv(from_, tag=EXCHANGED).array
        assert array.shape == (size,) and (array == value).all(), (array, value)
    for handle in sends: handle.wait()

core.init()
state = ObjectState(
    lambda value: broadcast_object(value, 0, "state", global_process_set),
    core.rank, step=0, seen=[], entered=0,
)

def train(state):
    global worlds
    worlds = int(core.allreduce(np.array(worlds), core.ReduceOp.MAX, name="worlds")) + 1
    state.entered += 1
    to, from_ = (core.rank() + 1) % core.size(), (core.rank() - 1) % core.size()
    for size in SIZES:
        left_over.append((core.isend(np.full(size, worlds), to, tag=NOT_TAKEN), worlds))
    left_over.append((core.irecv(from_, tag=NOT_SENT), worlds))
    # The first ones of this world, though those of an earlier one were not taken.
    assert core.recv(from_, tag=NOT_TAKEN).array.tolist() == [worlds] * SIZES[0]
    while True:
        what = events.get(str(state.step))
        if what in state.seen: what = None
        if what: state.seen = [*state.seen, what]
        exchange(to, from_, 1000 * worlds + state.step, what)
        core.barrier()  # ranks hear of one that joins with a collective
        state.step += 1
        if state.step >= steps and core.size() >= least: return
        time.sleep(0.02)
        state.commit()

run_fn(train, reset)(state)
print("well", core.rank(), core.size(), state.entered, flush=True)
core.shutdown()
"""
)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, TRAINING)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_dies(job: Job, transport: str) -> None:
    flags = ("-np", "3", "--min-np", "1", "--blacklist-by", "slot")
    more = {"EVENTS": '{"5": "1"}', "LEAST": "2", "PERSEUS_TRANSPORT": transport}
    result = job.run(*flags, hosts="localhost:3", steps=10, **more)
    assert finished(result) == [(0, 2, 2), (1, 2, 2)]


def test_a_rank_joins(job: Job) -> None:
    events = '{"3": "localhost:2,127.0.0.1:1"}'
    result = job.run("-np", "2", hosts="localhost:2", steps=10, EVENTS=events, LEAST="3")
    assert finished(result) == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]
