"""Every error that Horovod's PyTorch interface is known to raise, and the test that ours is raised.

TABLE is a checklist. Tests that no other file has follow it here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402

# Each condition, and the exception; below it the file under tests/python, and the test.
TABLE = """
# Handles
poll of an unknown handle: ValueError
    parallel/test_torch_handles.py test_handles_that_never_were
poll after synchronize: ValueError
    parallel/test_torch_handles.py test_the_life_of_a_handle
synchronize again: None
    parallel/test_torch_handles.py test_the_life_of_a_handle
synchronize after a failure: HorovodInternalError
    parallel/test_torch_handles.py test_a_failure_is_raised_once
a handle of an earlier life: ValueError
    parallel/test_torch_handles.py test_what_a_shutdown_leaves_behind

# Collectives
rank and size before init: ValueError
    parallel/test_torch_error_cases.py test_the_rank_family_without_init
a collective before init: HorovodInternalError
    parallel/test_torch_error_cases.py test_collectives_without_init
after shutdown: HorovodInternalError
    parallel/test_torch_errors.py test_without_init
in flight at shutdown: HorovodInternalError
    parallel/test_torch_errors.py test_shutdown_fails_what_is_in_flight
a peer dies: HorovodInternalError
    hosts/test_failures.py test_a_host_that_vanishes_becomes_an_error_on_both_sides
ranks that differ: HorovodInternalError
    parallel/test_torch_errors.py test_ranks_that_differ_fail_on_every_rank
groups that differ: HorovodInternalError
    parallel/test_torch_error_cases.py test_groups_that_differ
a name in flight: ValueError
    parallel/test_torch_errors.py test_a_name_twice_in_flight
a rank outside the set: ValueError
    parallel/test_torch_process_set_operations.py test_a_rank_outside_gets_an_error_at_the_call
a root outside the set: ValueError
    parallel/test_torch_process_set_operations.py test_a_root_outside_the_set
a set that is not registered: ValueError
    parallel/test_torch_errors.py test_a_set_that_is_not_registered
a root outside the world: ValueError
    parallel/test_torch_errors.py test_roots_and_scalars
wrong splits: ValueError
    parallel/test_torch_errors.py test_wrong_splits
rows that do not divide: ValueError
    parallel/test_torch_error_cases.py test_rows_that_do_not_divide_need_splits
gathering a scalar: HorovodInternalError
    parallel/test_torch_error_cases.py test_scalars
scattering a scalar: ValueError
    parallel/test_torch_error_cases.py test_scalars
a type that is not supported: ValueError
    parallel/test_torch_errors.py test_types_and_layouts_that_cannot_be_sent
op and average: ValueError
    parallel/test_torch_single_rank_errors.py test_a_mistake_of_all_ranks
average alone: DeprecationWarning
    parallel/test_torch_collectives.py test_the_deprecated_average_argument
a broadcast from a rank that has joined: HorovodInternalError
    parallel/test_torch_join.py test_a_broadcast_from_a_rank_that_has_joined_fails
a sparse tensor that is dense; another op: ValueError
    parallel/test_torch_single_rank_errors.py test_a_sparse_tensor_that_is_dense
Adasum of integers: ValueError
    parallel/test_torch_adasum.py test_integers_and_other_operations_are_refused

# Functions
broadcast_parameters of what is none: ValueError
    parallel/test_torch_functions.py test_broadcast_parameters_refuses_what_is_none
the state of LBFGS: ValueError
    parallel/test_torch_optimizer_state.py test_lbfgs_is_refused_before_anything_is_sent
an object that cannot be pickled: what pickle raised
    parallel/test_torch_single_rank_errors.py test_one_that_the_root_cannot_pickle

# DistributedOptimizer
gradient_predivide_factor without Average: ValueError
    parallel/test_torch_optimizer.py test_arguments
backward_passes_per_step of 0: ValueError
    parallel/test_torch_optimizer.py test_arguments
named_parameters without tuples: ValueError
    parallel/test_torch_optimizer.py test_arguments
names that are there twice: ValueError
    parallel/test_torch_optimizer.py test_arguments
parameters without a name: ValueError
    parallel/test_torch_optimizer.py test_arguments
groups of 0, of text, of no tensors: ValueError
    parallel/test_torch_error_cases.py test_groups_that_are_none
a parameter in two groups: ValueError
    parallel/test_torch_optimizer.py test_a_parameter_in_two_groups
num_groups: DeprecationWarning
    parallel/test_torch_optimizer.py test_options_that_must_not_change_the_result
more backward passes than said: AssertionError
    parallel/test_torch_optimizer.py test_too_many_backward_passes
a gradient that requires one: AssertionError
    parallel/test_torch_error_cases.py test_gradients_of_gradients
zero_grad while gradients move: AssertionError
    parallel/test_torch_models.py test_between_backward_and_step
step after synchronize: UserWarning
    parallel/test_torch_optimizer.py test_step_after_synchronize_warns
skip_synchronize with Adasum: AssertionError
    parallel/test_torch_adasum.py test_synchronize_does_nothing_and_cannot_be_skipped
arguments that Adasum does not take: ValueError
    parallel/test_torch_adasum.py test_arguments_that_do_not_go_with_it

# SyncBatchNorm
an input without channels: ValueError
    parallel/test_torch_sync_batch_norm.py test_errors_are_the_same_on_every_rank

# init, process sets
a comm that is none: ValueError
    unit/test_init_comm.py test_what_comm_cannot_be
a communicator of too few: ValueError
    unit/test_init_comm.py test_communicators_that_cannot_be_a_world
process_sets of another text: ValueError
    parallel/test_torch_process_sets.py test_a_set_takes_ranks
the same set twice in init: ValueError
    parallel/test_torch_process_sets.py test_on_all_ranks
a set of no whole numbers: ValueError
    parallel/test_torch_process_sets.py test_a_set_takes_ranks
a set that exists, or is the world: ValueError
    parallel/test_torch_process_sets.py test_sets_come_and_go
add_process_set where sets are fixed: ValueError
    parallel/test_torch_error_cases.py test_sets_that_are_fixed
remove_process_set where sets are fixed: ValueError
    parallel/test_torch_error_cases.py test_sets_that_are_fixed
removing the world or what is not registered: False
    parallel/test_torch_process_sets.py test_sets_come_and_go
the rank of who is no member: ValueError
    parallel/test_torch_process_sets.py test_sets_given_to_init
the size and rank of no registered set: None
    parallel/test_torch_error_cases.py test_a_set_before_it_is_registered
the timeline before init: ValueError
    parallel/test_torch_error_cases.py test_the_rank_family_without_init
mpi_threads_supported without MPI: ValueError
    parallel/test_torch_error_cases.py test_mpi_where_there_is_none
"""


def rows() -> list[tuple[str, str, str]]:
    lines = [line for line in TABLE.splitlines() if line and not line.startswith("#")]
    return [(says, *where.split()) for says, where in zip(lines[::2], lines[1::2], strict=True)]


def functions_of(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("says, file, test", rows(), ids=[says for says, _, _ in rows()])
def test_every_row_has_its_test(says, file, test):
    assert test in functions_of(Path(__file__).parents[1] / file), says


@pytest.fixture
def init():
    hvd.init()


@pytest.fixture
def job(init):
    """hvd.init has been called, not only perseus_core.init."""


@pytest.fixture
def no_engine():
    hvd.init()
    size = hvd.size()
    hvd.barrier()
    hvd.shutdown()
    yield size
    hvd.init()


@pytest.mark.parametrize(
    "question",
    [
        hvd.rank,
        hvd.size,
        hvd.local_rank,
        hvd.local_size,
        hvd.cross_rank,
        hvd.cross_size,
        hvd.mpi_threads_supported,
        hvd.stop_timeline,
        lambda: hvd.start_timeline("never written"),
        lambda: hvd.mpi_ops.is_homogeneous(),
    ],
)
def test_the_rank_family_without_init(no_engine, question):
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)\."):
        question()
    assert not hvd.is_initialized()


@pytest.mark.parametrize(
    "call",
    [
        lambda t: hvd.allreduce(t),
        lambda t: hvd.allreduce_(t),
        lambda t: hvd.allreduce_async(t),
        lambda t: hvd.grouped_allreduce([t]),
        lambda t: hvd.grouped_allreduce_async_([t], name="named"),
        lambda t: hvd.sparse_allreduce_async(t.to_sparse(), "sparse", hvd.Sum),
        lambda t: hvd.allgather(t),
        lambda t: hvd.grouped_allgather([t]),
        lambda t: hvd.broadcast(t, 0),
        lambda t: hvd.broadcast_async_(t, 0),
        lambda t: hvd.alltoall(t),
        lambda t: hvd.reducescatter(t),
        lambda t: hvd.grouped_reducescatter([t]),
        lambda t: hvd.join(),
        lambda t: hvd.barrier(),
        lambda t: hvd.broadcast_parameters({"t": t}, 0),
    ],
)
def test_collectives_without_init(no_engine, call):
    with pytest.raises(hvd.HorovodInternalError):
        call(torch.ones(4))


@pytest.mark.parametrize(
    "call",
    [
        lambda n: hvd.grouped_allreduce([torch.ones(2)] * n, name="g"),
        lambda n: hvd.grouped_allreduce([torch.ones(2), torch.ones(n)], name="g"),
        lambda n: hvd.grouped_allgather([torch.ones(2, 2), torch.ones(2, n)], name="g"),
        lambda n: hvd.grouped_reducescatter([torch.ones(4, 2), torch.ones(4, n)], name="g"),
        lambda n: hvd.grouped_allreduce(
            [torch.ones(2)], op=hvd.Sum if n == 1 else hvd.Max, name="g"
        ),
    ],
)
def test_groups_that_differ(two_ranks, call):
    """They differ in length, in shape, or in op (Sum is 1, Min 3)."""
    with pytest.raises(hvd.HorovodInternalError):
        call(1 if hvd.rank() == 0 else 3)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_rows_that_do_not_divide_need_splits(two_ranks):
    with pytest.raises(ValueError):
        hvd.alltoall(torch.ones(hvd.size() + 1))
    assert hvd.alltoall(torch.ones(hvd.size())).tolist() == [1.0] * hvd.size()


def test_scalars(init):
    scalar = torch.tensor(1.0)
    for call in (
        hvd.allgather,
        hvd.alltoall,
        lambda t: hvd.grouped_allgather([torch.ones(2), t]),
        lambda t: hvd.synchronize(hvd.allgather_async(t)),
    ):
        with pytest.raises(hvd.HorovodInternalError):
            call(scalar)
    for call in (hvd.reducescatter, lambda t: hvd.grouped_reducescatter([t])):
        with pytest.raises(ValueError, match="at least one dimension"):
            call(scalar)
    assert hvd.allreduce(scalar, op=hvd.Sum).item() == hvd.size()
    assert hvd.broadcast(scalar, 0).item() == 1.0


@pytest.mark.parametrize("groups", [0, -1, "all", 1.5, [1, 2], [["a"]], [[torch.ones(1)], [None]]])
def test_groups_that_are_none(two_ranks, groups):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="groups must"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), groups=groups
        )


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_of_gradients(two_ranks):
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters()
    )
    loss = model(torch.ones(1, 2)).square().sum()
    with pytest.raises(AssertionError, match="must not itself require one"):
        loss.backward(create_graph=True)
    for param in model.parameters():
        param.grad = None
    optimizer.step()
    # torch.autograd.grad, as penalties use it, runs no hooks.
    weight = model.weight
    (slope,) = torch.autograd.grad(
        model(torch.ones(1, 2)).square().sum(), weight, create_graph=True
    )
    slope.square().sum().backward()
    optimizer.step()


def test_sets_that_are_fixed(no_engine, monkeypatch):
    monkeypatch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "0")
    fixed = [hvd.ProcessSet([0])] if no_engine > 1 else []
    hvd.init(process_sets=fixed)
    with pytest.raises(ValueError, match="dynamic"):
        hvd.add_process_set([hvd.size() - 1])
    for process_set in fixed:
        with pytest.raises(ValueError, match="dynamic"):
            hvd.remove_process_set(process_set)
    hvd.barrier()
    hvd.shutdown()


def test_a_set_before_it_is_registered(init):
    process_set = hvd.ProcessSet([0])
    assert process_set.process_set_id is None
    assert process_set.size() is None
    assert process_set.rank() is None
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[0], mpi_comm=None)"


def test_mpi_where_there_is_none(init):
    if hvd.mpi_enabled():
        pytest.skip("MPI started this job")
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()
