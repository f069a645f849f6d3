"""Join: ranks with uneven numbers of steps, the results of the others, and operations after it."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


@pytest.fixture
def ends():
    """The first and the last rank, a set that not all ranks are in where there are more."""
    size = hvd.size()
    hvd.barrier()
    hvd.shutdown()
    process_set = hvd.ProcessSet([0, size - 1]) if size > 2 else hvd.global_process_set
    hvd.init(process_sets=[process_set] if size > 2 else None)
    yield process_set
    hvd.barrier()
    hvd.shutdown()


def own(rank: int, rows: int | None = None) -> torch.Tensor:
    """Returns a rank's input: two rows for each rank, unless told otherwise."""
    rows = 2 * hvd.size() if rows is None else rows
    return torch.arange(3.0 * rows, dtype=torch.float64).reshape(rows, 3) * (rank + 1) + 1


def stacked(ranks) -> torch.Tensor:
    return torch.stack([own(r) for r in ranks])


def rows_for(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor[2 * rank : 2 * rank + 2]


# The result of each operation on ranks that have not joined, `active` of them; `me` is one of
# these.
OPERATIONS = {
    "allreduce sum": (
        lambda name, me: hvd.allreduce(own(me), name=name, op=hvd.Sum),
        lambda active, me: stacked(active).sum(0),
    ),
    "allreduce average": (  # of all ranks, as in Horovod
        lambda name, me: hvd.allreduce(own(me), name=name),
        lambda active, me: stacked(active).sum(0) / hvd.size(),
    ),
    "allreduce scaled": (
        lambda name, me: hvd.allreduce(
            own(me), name=name, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25
        ),
        lambda active, me: stacked(active).sum(0) / 2,
    ),
    "allreduce min": (
        lambda name, me: hvd.allreduce(own(me), name=name, op=hvd.Min),
        lambda active, me: stacked(active).amin(0),
    ),
    "allreduce max": (
        lambda name, me: hvd.allreduce(-own(me), name=name, op=hvd.Max),
        lambda active, me: (-stacked(active)).amax(0),
    ),
    "allreduce product": (
        lambda name, me: hvd.allreduce(own(me), name=name, op=hvd.Product),
        lambda active, me: stacked(active).prod(0),
    ),
    "allreduce_": (
        lambda name, me: hvd.allreduce_(own(me), name=name, op=hvd.Sum),
        lambda active, me: stacked(active).sum(0),
    ),
    "grouped_allreduce": (
        lambda name, me: hvd.grouped_allreduce([own(me), -own(me)], name=name, op=hvd.Sum),
        lambda active, me: [stacked(active).sum(0), -stacked(active).sum(0)],
    ),
    "sparse_allreduce": (
        lambda name, me: hvd.sparse_allreduce_async(
            own(me).to_sparse(1), name or "sparse", hvd.Sum
        )().to_dense(),
        lambda active, me: stacked(active).sum(0),
    ),
    "allgather": (
        lambda name, me: hvd.allgather(own(me, rows=me + 1), name=name),
        lambda active, me: torch.cat([own(r, rows=r + 1) for r in active]),
    ),
    "grouped_allgather": (
        lambda name, me: hvd.grouped_allgather([own(me), own(me, rows=me)], name=name),
        lambda active, me: (
            torch.cat([own(r) for r in active]),
            torch.cat([own(r, rows=r) for r in active]),
        ),
    ),
    "broadcast": (
        lambda name, me: hvd.broadcast(own(me), hvd.size() - 1, name=name),
        lambda active, me: own(hvd.size() - 1),
    ),
    "broadcast_": (
        lambda name, me: hvd.broadcast_(own(me), hvd.size() - 1, name=name),
        lambda active, me: own(hvd.size() - 1),
    ),
    "alltoall": (
        lambda name, me: hvd.alltoall(own(me), [2] * hvd.size(), name=name)[0],
        lambda active, me: torch.cat([rows_for(own(r), me) for r in active]),
    ),
    "reducescatter": (
        lambda name, me: hvd.reducescatter(own(me), name=name, op=hvd.Sum),
        lambda active, me: rows_for(stacked(active).sum(0), me),
    ),
    "grouped_reducescatter": (
        lambda name, me: hvd.grouped_reducescatter([own(me), own(me)], name=name, op=hvd.Sum),
        lambda active, me: [rows_for(stacked(active).sum(0), me)] * 2,
    ),
    "broadcast_object": (
        lambda name, me: hvd.broadcast_object({"of": me}, hvd.size() - 1, name=name),
        lambda active, me: {"of": hvd.size() - 1},
    ),
    "allgather_object": (
        lambda name, me: hvd.allgather_object([me] * me, name=name),
        lambda active, me: [[r] * r for r in active],
    ),
}


def check(operation: str, name: str | None, active: list[int]) -> None:
    call, expected = OPERATIONS[operation]
    result, wanted = call(name, hvd.rank()), expected(active, hvd.rank())
    if "object" in operation:
        assert result == wanted
    else:
        torch.testing.assert_close(result, wanted)


def everyone() -> list[int]:
    return list(range(hvd.size()))


@pytest.mark.parametrize("name", [None, "uneven"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_while_ranks_join_and_after(operation, name):
    """Rank r makes r + 1 calls. Two epochs; then the operation works among all ranks again."""
    size, me = hvd.size(), hvd.rank()
    for epoch in range(2):
        for step in range(me + 1):
            active = [r for r in everyone() if r >= step]
            check(operation, name and f"{name}.{epoch}.{step}", active)
        assert hvd.join() == size - 1
    for again in range(3):
        check(operation, None, everyone())
        check(operation, name and f"{name}.after.{again}", everyone())


@pytest.mark.parametrize("first", OPERATIONS)
def test_any_operation_may_follow(first):
    """Unnamed calls, made unequally often before join, meet each other again after it."""
    for _ in range(2 * hvd.rank()):
        hvd.allreduce(torch.ones(2))
    hvd.join()
    check(first, None, everyone())
    for operation in OPERATIONS:
        check(operation, None, everyone())


@pytest.mark.parametrize("steps_of", [lambda r: hvd.size() - r, lambda r: (3 * r + 1) % 4])
def test_all_ranks_are_told_of_the_same_last_rank(steps_of):
    me = hvd.rank()
    most = max(steps_of(r) for r in everyone())
    for step in range(steps_of(me)):
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum, name=f"steps.{step}")
        assert total.item() == sum(steps_of(r) > step for r in everyone())
    last = hvd.join()
    assert isinstance(last, int)
    assert hvd.allgather(torch.tensor([last])).tolist() == [last] * hvd.size()
    # Ranks with the most calls can only join after all others have joined or made as many.
    assert steps_of(last) == most


def test_when_nobody_has_anything_else_to_do():
    for _ in range(3):
        assert 0 <= hvd.join() < hvd.size()


def test_neutral_elements_of_every_type(two_ranks):
    """Rank 0 joins at once: its contribution changes nothing."""
    if hvd.rank() > 0:
        for dtype in (torch.int8, torch.uint8, torch.int64, torch.float16, torch.bfloat16):
            tensor = torch.tensor([1, 3, 5], dtype=dtype)
            for op in (hvd.Min, hvd.Max):
                result = hvd.allreduce(tensor, op=op, name=f"neutral.{op}.{dtype}")
                assert result.tolist() == [1, 3, 5]
        negative = torch.tensor([-7.0, float("-inf")])
        assert hvd.allreduce(negative, op=hvd.Max, name="most").tolist() == negative.tolist()
        assert hvd.allreduce(-negative, op=hvd.Min, name="least").tolist() == (-negative).tolist()
    hvd.join()


@pytest.mark.parametrize("name", [None, "gone"])
def test_a_broadcast_from_a_rank_that_has_joined_fails(two_ranks, name):
    if hvd.rank() > 0:
        for call in (hvd.broadcast, hvd.broadcast_):
            with pytest.raises(hvd.HorovodInternalError, match="joined"):
                call(torch.ones(2), 0, name=name)
        # The job goes on.
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size() - 1
    hvd.join()
    check("broadcast", None, everyone())


def test_handles_that_are_synchronized_only_after_join():
    handles = [hvd.allreduce_async(own(hvd.rank()), op=hvd.Sum) for _ in range(3)]
    hvd.join()
    for handle in handles:
        torch.testing.assert_close(hvd.synchronize(handle), stacked(everyone()).sum(0))


def test_the_process_sets_of_a_rank_that_joins(two_ranks, ends):
    """In its sets too it takes part with what changes nothing."""
    last = hvd.size() - 1
    for epoch in range(2):
        if hvd.rank() == last:
            mine = own(last)
            for name in (None, f"of the set {epoch}"):
                result = hvd.allreduce(mine, op=hvd.Sum, name=name, process_set=ends)
                torch.testing.assert_close(result, mine)
                rows = hvd.allgather(mine, name=name, process_set=ends)
                torch.testing.assert_close(rows, mine)
                assert hvd.broadcast_object("kept", last, name, ends) == "kept"
        assert hvd.join() == last
        if ends.included():
            gathered = hvd.allgather(torch.tensor([hvd.rank()]), process_set=ends)
            assert gathered.tolist() == ends.ranks


def test_training_with_uneven_numbers_of_batches():
    """As in one process, on what batches there are; the mean is over all ranks."""

    def batches(rank: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(rank)
        shape = (rank % 3 + 1, 4, 5)
        return list(torch.randn(shape, generator=generator, dtype=torch.float64))

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    model = model.double()
    reference = copy.deepcopy(model)
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _ in range(2):
        for batch in batches(hvd.rank()):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        last = hvd.join()
        # Ranks that joined early have missed the last steps.
        hvd.broadcast_parameters(model.state_dict(), last)
        for step in range(max(len(batches(r)) for r in everyone())):
            alone.zero_grad()
            for r in everyone():
                if step < len(batches(r)):
                    (reference(batches(r)[step]).square().mean() / hvd.size()).backward()
            alone.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_gradients_that_flow_back_after_join():
    """The backward of a differentiable collective makes unnamed calls."""
    for _ in range(hvd.rank()):
        hvd.allreduce(torch.ones(2), name=f"before.{_}")
    hvd.join()
    tensor = own(hvd.rank()).requires_grad_()
    hvd.allreduce(hvd.allgather(tensor), op=hvd.Sum).sum().backward()
    torch.testing.assert_close(tensor.grad, torch.full_like(tensor, float(hvd.size())))


def test_the_device_of_join():
    for device in (-1, 0, hvd.local_rank()):
        hvd.join(device)
    with pytest.raises(ValueError, match="device is -2"):
        hvd.join(device=-2)
    with pytest.raises(TypeError, match="integer"):
        hvd.join(device="cuda")
