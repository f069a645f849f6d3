"""Jobs of the MXNet adapter that end in special ways, and unchanged Horovod scripts.

Run in the environment of tests/python/mxnet_adapter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunRanks, all_well

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

#: Names that `import horovod.mxnet as hvd` provides in Horovod 0.28.1.
_HOROVOD_MXNET = """
init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built start_timeline stop_timeline
ProcessSet global_process_set add_process_set remove_process_set
Average Sum Adasum Min Max Product
allreduce allreduce_ grouped_allreduce grouped_allreduce_ allgather grouped_allgather
broadcast broadcast_ alltoall reducescatter grouped_reducescatter
allgather_object broadcast_object broadcast_parameters Compression DistributedOptimizer
DistributedTrainer check_extension split_list
"""
HOROVOD_MXNET = _HOROVOD_MXNET.split()

SCRIPT = """
import mxnet as mx
import horovod.mxnet as hvd
from horovod.mxnet.mpi_ops import allreduce_

hvd.init()
array = mx.nd.ones((3,)) * hvd.rank()
allreduce_(array, average=False)
assert array.asnumpy().tolist() == [sum(range(hvd.size()))] * 3
net = mx.gluon.nn.Dense(2, in_units=3)
net.initialize(mx.init.Constant(float(hvd.rank())))
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
with mx.autograd.record():
    loss = net(mx.nd.ones((4, 3))).sum()
loss.backward()
trainer.step(4)
assert abs(net.weight.data() + 0.1).max().asscalar() < 1e-6
print("well")
"""


def test_a_script_for_horovod_runs_as_it_is(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, SCRIPT, options=("--drop-in",)), 2)


def test_the_drop_ins_modules_are_ours_and_not_copies(run_ranks: RunRanks) -> None:
    script = """
import importlib
from perseus.dropin.modules import MISSING, MODULES

for theirs, ours in MODULES.items():
    if theirs.startswith("horovod.mxnet"):
        assert importlib.import_module(theirs) is importlib.import_module(ours), theirs
try:
    import horovod.mxnet.mpi_lib
except ImportError as error:
    assert MISSING["horovod.mxnet.mpi_lib"] in str(error), error
    print("well")
"""
    all_well(run_ranks(1, script, options=("--drop-in",)), 1)


def test_every_name_of_horovods_is_there() -> None:
    import perseus.mxnet as perseus
    import perseus.mxnet.horovod as hvd

    for name in HOROVOD_MXNET:
        assert name in hvd.__all__
        assert getattr(perseus, name) is getattr(hvd, name)
    assert len(HOROVOD_MXNET) == len(set(HOROVOD_MXNET))


def test_after_duplicate_process_sets_the_job_goes_on(run_ranks: RunRanks) -> None:
    """The operations that MXNet has been given still complete when the script ends."""
    script = """
import mxnet as mx
import perseus.mxnet.horovod as hvd

first, again = hvd.ProcessSet([0]), hvd.ProcessSet([0])
try:
    hvd.init(process_sets=[first, again])
except ValueError as error:
    assert "exists already" in str(error), error
else:
    raise AssertionError("no error")
assert hvd.is_initialized() and first.process_set_id is not None
hvd.allreduce_(mx.nd.ones((2,)), name="last")
print("well")
"""
    all_well(run_ranks(2, script), 2)


NAIVE = {**os.environ, "MXNET_ENGINE_TYPE": "NaiveEngine"}


def test_naive_engine(run_ranks: RunRanks) -> None:
    all_well(run_ranks(2, SCRIPT, options=("--drop-in",), environment=NAIVE), 2)


def test_naive_engine_hears_of_errors_at_the_call(run_ranks: RunRanks) -> None:
    script = """
import mxnet as mx
import perseus.mxnet.horovod as hvd
from perseus.common.exceptions import HorovodInternalError

hvd.init()
for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
    shape = (2, 2 + hvd.rank())
    try:
        call(mx.nd.ones(shape), name="differs")
    except HorovodInternalError as error:
        assert isinstance(error, mx.MXNetError)
        assert "differs" in str(error), error
    else:
        raise AssertionError("no error")
assert hvd.allreduce(mx.nd.ones((2,)), name="differs").asnumpy().tolist() == [1.0, 1.0]
print("well")
"""
    all_well(run_ranks(2, script, environment=NAIVE), 2)


@pytest.mark.parametrize("engine", ["NaiveEngine", "ThreadedEnginePerDevice"])
def test_training_ends_when_a_rank_dies(run_ranks: RunRanks, engine: str) -> None:
    script = """
import os, signal
import mxnet as mx
import perseus.mxnet.horovod as hvd

hvd.init()
net = mx.gluon.nn.Dense(2, in_units=3)
net.initialize()
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
for step in range(6):
    if step == 3 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with mx.autograd.record():
        loss = net(mx.nd.ones((4, 3))).sum()
    loss.backward()
    trainer.step(4)
net.weight.data().asnumpy()
print("survived")
"""
    environment = {**os.environ, "MXNET_ENGINE_TYPE": engine}
    result = run_ranks(2, script, options=("--min-np", "1"), environment=environment)
    assert "survived" not in result.stdout
    assert "lost rank 1" in result.stderr


def test_a_fork_waits_for_what_is_under_way(run_ranks: RunRanks) -> None:
    script = """
import multiprocessing
import mxnet as mx
import perseus.mxnet.horovod as hvd

hvd.init()
a = mx.nd.ones((1000, 1000)) / 1000
for _ in range(3):
    results = [hvd.allreduce(mx.nd.dot(a, a)) for i in range(4)]
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert abs(results[-1] - 1 / 1000).max().asscalar() < 1e-6
print("well")
"""
    all_well(run_ranks(2, script), 2)


def test_a_fork_waits_for_threads_on_their_way_back(run_ranks: RunRanks) -> None:
    """Those that have just submitted what has ended since."""
    script = """
import os
import mxnet as mx
import perseus.mxnet.horovod as hvd

hvd.init()
a = mx.nd.ones((4,))
for _ in range(300):
    results = [hvd.allreduce(a) for i in range(4)]
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert results[-1].asnumpy().tolist() == [1.0] * 4
print("well")
"""
    all_well(run_ranks(2, script), 2)


def test_threads_that_use_one_name_and_one_array(run_ranks: RunRanks) -> None:
    script = """
import sys
import threading
import mxnet as mx
import perseus.mxnet.horovod as hvd

hvd.init()
sys.setswitchinterval(1e-6)
x = mx.nd.ones((4,))

def work():
    for _ in range(500):
        hvd.allreduce_(x, name="same")

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert x.asnumpy().tolist() == [1.0] * 4
print("well")
"""
    all_well(run_ranks(2, script), 2)


def test_a_rank_that_dies_is_an_error_of_the_others(run_ranks: RunRanks) -> None:
    script = """
import os, signal, time
import mxnet as mx
import perseus.mxnet.horovod as hvd
from perseus.common.exceptions import HorovodInternalError

hvd.init()
began = time.monotonic()
try:
    for _ in range(2):  # rank 1 may have the first result before the others have it
        (hvd.allreduce(mx.nd.ones((3,))) + 1).wait_to_read()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
except HorovodInternalError as error:
    assert isinstance(error, mx.MXNetError)
    assert "rank 1" in str(error), error
else:
    raise AssertionError("no error")
try:
    hvd.allgather(mx.nd.ones((3,)))
except HorovodInternalError as error:
    assert time.monotonic() - began < 10
    print("well", flush=True)
"""
    result = run_ranks(3, script, options=("--min-np", "2"))
    assert result.stdout.count("well") == 2, result.stdout + result.stderr


def test_what_a_script_has_not_waited_for_still_reaches_the_others(run_ranks: RunRanks) -> None:
    script = """
import mxnet as mx
import perseus.mxnet.horovod as hvd

hvd.init()
n = 700
x = mean = mx.nd.ones((n, n)) / n
# Rank 0 is the last to come to the end.
for _ in range(30 if hvd.rank() == 0 else 1):
    x = mx.nd.dot(x, mean)
x = hvd.allreduce(x, name="last")
if hvd.rank() == 0:
    assert abs(x.asnumpy() - 1 / n).max() < 1e-6
print("well")
"""
    all_well(run_ranks(2, script), 2)


@pytest.mark.parametrize("first", [0, 1])
def test_an_operation_that_nobody_else_makes_does_not_keep_a_script_from_its_end(
    run_ranks: RunRanks, first: int
) -> None:
    # One rank gives up long before the other. At the same time, the first to leave would end the
    # other's operation, which then had nothing to warn of.
    script = f"""
import os
rank = int(os.environ["PERSEUS_RANK"])
os.environ["PERSEUS_STALL_CHECK_TIME_SECONDS"] = "2" if rank == {first} else "50"
import mxnet as mx
import perseus.mxnet.horovod as hvd

hvd.init()
hvd.allreduce(mx.nd.ones((3,)), name=f"of rank {{rank}}")
print("well")
"""
    result = run_ranks(2, script)
    all_well(result, 2)
    warning = "rank {} leaves before 1 of its operations are complete"
    assert warning.format(first) in result.stderr
    assert warning.format(1 - first) not in result.stderr


def test_init_may_follow_shutdown(run_ranks: RunRanks) -> None:
    script = """
import mxnet as mx
import perseus.mxnet.horovod as hvd
from perseus.common.exceptions import HorovodInternalError

for _ in range(3):
    hvd.init()
    result = hvd.allreduce(mx.nd.ones((3,)), op=hvd.Sum, name="same")
    assert result.asnumpy().tolist() == [hvd.size()] * 3
    hvd.shutdown()
    try:
        hvd.allreduce(mx.nd.ones((3,)))
    except HorovodInternalError as error:
        assert "has not been initialized" in str(error), error
    else:
        raise AssertionError("no error")
print("well")
"""
    all_well(run_ranks(2, script), 2)


def test_an_old_numpy_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("__version__ = '2.4.6'")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import perseus.mxnet"
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "NumPy older than 1.24, and NumPy 2.4.6 is installed" in result.stderr


@pytest.mark.parametrize(
    ("program", "ranks", "prints"),
    [
        ("01_gluon.py", 3, "3 processes: test accuracy"),
        ("02_module.py", 2, "2 workers: test accuracy"),
        ("03_class_split.py", 4, "4 workers with 3 of 10 classes each: test accuracy"),
    ],
)
def test_an_example_does_what_it_says(
    run_ranks: RunRanks, program: str, ranks: int, prints: str
) -> None:
    launcher = [sys.executable, "-m", "perseus.run", "-np", str(ranks)]
    command = [*launcher, sys.executable, str(EXAMPLES / "mxnet" / program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert prints in result.stdout


ALTERED = """
import perseus.mxnet.horovod as hvd
from perseus_core import HorovodInternalError, proven

broadcast, allgather = proven.Call._broadcast, proven.Call._allgather

def broadcast_altered(call, array, root, name):
    sequence = broadcast(call, array, root, name)
    if name == "b.t" and hvd.rank() == hvd.size() - 1:
        array[0] ^= 1
    return sequence

def allgather_altered(call, array, name):
    gathered, sequence = allgather(call, array, name)
    if name == "a.t" and hvd.rank() == hvd.size() - 1:
        gathered[0] ^= 1
    return gathered, sequence

proven.Call._broadcast, proven.Call._allgather = broadcast_altered, allgather_altered
hvd.init()
try:
    {call}
    hvd.allgather_object(0)
except HorovodInternalError as error:
    assert "what has come from rank 0 on localhost was changed on the way" in str(error), error
    print("well")
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "call", ['hvd.broadcast_object("object", 0, name="b")', 'hvd.allgather_object("object", "a")']
)
def test_an_altered_object_is_refused_and_all_learn_of_it(
    run_ranks: RunRanks, call: str, ranks: int
) -> None:
    all_well(run_ranks(ranks, ALTERED.format(call=call)), ranks)


ELASTIC = """
import os, signal
import mxnet as mx
import numpy as np
import perseus.mxnet.horovod as hvd

launched = int(os.environ["PERSEUS_RANK"])
hvd.init()
x = mx.nd.array(np.random.default_rng(0).normal(size=(8, 3)))

def made(trainer_class, **options):
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.Constant(0.5))
    options["optimizer_params"] = {"learning_rate": 0.1, "momentum": 0.9}
    return net, trainer_class(net.collect_params(), "sgd", **options)

def step(net, trainer):
    with mx.autograd.record():
        loss = net(x).square().sum()
    loss.backward()
    trainer.step(8)

net, trainer = made(hvd.DistributedTrainer)

@hvd.elastic.run
def train(state):
    while state.step < 12:
        if state.step == 5 and launched == 1:
            mx.nd.waitall()
            os.kill(os.getpid(), signal.SIGKILL)
        step(net, trainer)
        state.step += 1
        if state.step % 3 == 0:
            state.commit()

train(hvd.elastic.MXNetState(net=net, trainer=trainer, step=0))
assert hvd.size() == 2
alone, trainer = made(mx.gluon.Trainer, kvstore=None)
for _ in range(12):
    step(alone, trainer)
for name in ("weight", "bias"):
    ours, wanted = (getattr(each, name).data().asnumpy() for each in (net, alone))
    np.testing.assert_allclose(ours, wanted, atol=1e-5)
print("well")
"""


@pytest.mark.parametrize("engine", ["ThreadedEnginePerDevice", "NaiveEngine"])
def test_the_others_go_on_from_the_last_commit(run_ranks: RunRanks, engine: str) -> None:
    environment = {**os.environ, "MXNET_ENGINE_TYPE": engine}
    result = run_ranks(3, ELASTIC, options=("--min-np", "2"), environment=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("well") == 2, result.stdout
