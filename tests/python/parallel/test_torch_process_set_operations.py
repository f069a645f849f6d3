"""Every operation, and its gradient, on the world and on process sets that overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402


@dataclass
class Sets:
    """Sets that overlap; each rank is in several of them, and in none of some."""

    all: dict[str, hvd.ProcessSet] = field(default_factory=dict)

    def mine(self) -> list[hvd.ProcessSet]:
        return [process_set for process_set in self.all.values() if process_set.included()]


def plan(size: int) -> dict[str, list[int]]:
    """Names and ranks; none is the world."""
    wanted = {
        "alone": [0],
        "ends": [0, size - 1],
        "without the first": list(range(1, size)),
        "without the last": list(range(size - 1)),
        "even": list(range(0, size, 2)),
    }
    kept: dict[str, list[int]] = {}
    for name, ranks in wanted.items():
        if ranks and len(ranks) < size and ranks not in kept.values():
            kept[name] = sorted(set(ranks))
    return kept


@pytest.fixture(scope="module", params=["static", "dynamic"])
def sets(request: pytest.FixtureRequest) -> Iterator[Sets]:
    hvd.init()
    size = hvd.size()
    hvd.barrier()
    hvd.shutdown()
    planned = plan(size)
    made = Sets({"world": hvd.global_process_set})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "0")
        if request.param == "static":
            own = {name: hvd.ProcessSet(ranks) for name, ranks in planned.items()}
            hvd.init(process_sets=list(own.values()))
        else:
            hvd.init(process_sets="dynamic")
            own = {name: hvd.add_process_set(ranks) for name, ranks in planned.items()}
        made.all.update(own)
        yield made
        if request.param == "dynamic":
            for process_set in own.values():
                assert hvd.remove_process_set(process_set)
        hvd.barrier()
        hvd.shutdown()


def given(rank: int, rows: int, salt: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.rand(rows, 3, generator=generator, dtype=torch.float64) + 0.5


def weight(rank: int, shape: torch.Size) -> torch.Tensor:
    """Returns the factor of a rank's output before it is summed, so that gradients differ."""
    generator = torch.Generator().manual_seed(77 + rank)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


class Case:
    """An operation among `ranks`: the call, what it gives, and the gradient that Horovod defines.

    Inputs of rank r are given(r, rows(r)); `gradients` holds each rank's gradient of its output.
    """

    def __init__(
        self,
        call: Callable[[torch.Tensor, str | None, hvd.ProcessSet], torch.Tensor],
        rows: Callable[[int, list[int]], int],
        output: Callable[[dict[int, torch.Tensor], int], torch.Tensor],
        gradient: Callable[[dict[int, torch.Tensor], dict[int, torch.Tensor], int], torch.Tensor],
    ) -> None:
        self.call = call
        self.rows = rows
        self.output = output
        self.gradient = gradient

    def check(self, process_set: hvd.ProcessSet, name: str | None) -> None:
        ranks, me = process_set.ranks, hvd.rank()
        inputs = {r: given(r, self.rows(r, ranks)) for r in ranks}
        tensor = inputs[me].clone().requires_grad_()
        result = self.call(tensor, name, process_set)
        expected = {r: self.output(inputs, r) for r in ranks}
        torch.testing.assert_close(result, expected[me])
        (result * weight(me, result.shape)).sum().backward()
        gradients = {r: weight(r, expected[r].shape) for r in ranks}
        torch.testing.assert_close(tensor.grad, self.gradient(inputs, gradients, me))


def total(of: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(of.values())).sum(0)


def mean(of: dict[int, torch.Tensor]) -> torch.Tensor:
    return total(of) / len(of)


def place(of: dict[int, torch.Tensor], me: int) -> slice:
    """Returns where this rank's rows are among all rows, in rank order."""
    begin = sum(len(tensor) for r, tensor in of.items() if r < me)
    return slice(begin, begin + len(of[me]))


def dealt(tensor: torch.Tensor, ranks, me: int) -> torch.Tensor:
    """This rank's rows of a tensor; the first ranks have one more where they do not divide."""
    return tensor.tensor_split(len(ranks))[sorted(ranks).index(me)]


def collected(parts: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.cat([parts[r] for r in sorted(parts)])


def five(rank: int, ranks: list[int]) -> int:
    return 5


def uneven(rank: int, ranks: list[int]) -> int:
    return (3 * rank + 1) % 4


def splits(sender: int, ranks: list[int]) -> list[int]:
    """Returns how many rows a rank sends to each; some get none."""
    return [(sender + 2 * receiver) % 3 for receiver in ranks]


def sent(of: dict[int, torch.Tensor], sender: int, receiver: int) -> torch.Tensor:
    ranks = sorted(of)
    return of[sender].split(splits(sender, ranks))[ranks.index(receiver)]


def came_back(gradients: dict[int, torch.Tensor], me: int) -> torch.Tensor:
    """The gradients of the rows that this rank sent, from where they went."""
    ranks = sorted(gradients)
    parts = []
    for receiver in ranks:
        received = [splits(sender, ranks)[ranks.index(receiver)] for sender in ranks]
        parts.append(gradients[receiver].split(received)[ranks.index(me)])
    return torch.cat(parts)


def scaled(op: int, ranks) -> float:
    """Returns the factor of a sum over all ranks, with the scale factors of the calls below."""
    return 0.5 * 3.0 * (1 if op == hvd.Sum else 1 / len(ranks))


SCALES = {"prescale_factor": 0.5, "postscale_factor": 3.0}


def reductions() -> Iterator[tuple[str, Case]]:
    for op, word in ((hvd.Sum, "sum"), (hvd.Average, "average")):
        yield (
            f"allreduce {word}",
            Case(
                lambda t, name, ps, op=op: hvd.allreduce(
                    t, name=name, op=op, process_set=ps, **SCALES
                ),
                five,
                lambda inputs, me, op=op: total(inputs) * scaled(op, inputs),
                lambda inputs, grads, me, op=op: total(grads) * scaled(op, inputs),
            ),
        )
        yield (
            f"grouped_allreduce {word}",
            Case(
                lambda t, name, ps, op=op: torch.cat(
                    hvd.grouped_allreduce(
                        [t[:2], t[2:]], name=name, op=op, process_set=ps, **SCALES
                    )
                ),
                five,
                lambda inputs, me, op=op: total(inputs) * scaled(op, inputs),
                lambda inputs, grads, me, op=op: total(grads) * scaled(op, inputs),
            ),
        )
        # Horovod's gradient of an average is not divided by the number of ranks.
        yield (
            f"reducescatter {word}",
            Case(
                lambda t, name, ps, op=op: hvd.reducescatter(
                    t, name=name, op=op, process_set=ps, **SCALES
                ),
                five,
                lambda inputs, me, op=op: dealt(total(inputs) * scaled(op, inputs), inputs, me),
                lambda inputs, grads, me, op=op: (
                    collected(grads) * 1.5 * (len(inputs) if op == hvd.Sum else 1)
                ),
            ),
        )
        yield (
            f"grouped_reducescatter {word}",
            Case(
                lambda t, name, ps, op=op: torch.cat(
                    hvd.grouped_reducescatter([t], name=name, op=op, process_set=ps, **SCALES)
                ),
                five,
                lambda inputs, me, op=op: dealt(total(inputs) * scaled(op, inputs), inputs, me),
                lambda inputs, grads, me, op=op: (
                    collected(grads) * 1.5 * (len(inputs) if op == hvd.Sum else 1)
                ),
            ),
        )


def movements() -> Iterator[tuple[str, Case]]:
    yield (
        "allgather",
        Case(
            lambda t, name, ps: hvd.allgather(t, name=name, process_set=ps),
            uneven,
            lambda inputs, me: collected(inputs),
            lambda inputs, grads, me: mean(grads)[place(inputs, me)],
        ),
    )
    yield (
        "grouped_allgather",
        Case(
            lambda t, name, ps: torch.cat(
                hvd.grouped_allgather([t, 2 * t], name=name, process_set=ps)
            ),
            uneven,
            lambda inputs, me: torch.cat((collected(inputs), 2 * collected(inputs))),
            lambda inputs, grads, me: (
                mean(grads).chunk(2)[0][place(inputs, me)]
                + 2 * mean(grads).chunk(2)[1][place(inputs, me)]
                if len(collected(inputs))
                else torch.zeros_like(inputs[me])
            ),
        ),
    )
    yield (
        "broadcast",
        Case(
            lambda t, name, ps: hvd.broadcast(t, ps.ranks[-1], name=name, process_set=ps),
            five,
            lambda inputs, me: inputs[max(inputs)],
            lambda inputs, grads, me: mean(grads) * (me == max(inputs)),
        ),
    )
    yield (
        "alltoall",
        Case(
            lambda t, name, ps: hvd.alltoall(
                t, splits(hvd.rank(), ps.ranks), name=name, process_set=ps
            )[0],
            lambda rank, ranks: sum(splits(rank, ranks)),
            lambda inputs, me: torch.cat([sent(inputs, r, me) for r in sorted(inputs)]),
            lambda inputs, grads, me: came_back(grads, me),
        ),
    )


CASES = dict((*reductions(), *movements()))


@pytest.mark.parametrize("name", [None, "the same on all sets"])
@pytest.mark.parametrize("operation", CASES)
def test_numbers_and_gradients(sets, operation, name):
    for process_set in sets.mine():
        CASES[operation].check(process_set, name)


def test_sets_do_not_wait_for_each_other(sets):
    """Operations of the same name are in flight on all sets at once, begun in another order."""
    mine = sets.mine()
    if hvd.rank() % 2:
        mine.reverse()
    handles = []
    for step in range(5):
        for process_set in mine:
            tensor = torch.full((50,), hvd.rank() + step + 1.0)
            handle = hvd.allreduce_async(
                tensor, op=hvd.Sum, name=f"overlapping.{step}", process_set=process_set
            )
            handles.append((process_set, step, handle))
    for process_set, step, handle in handles:
        expected = float(sum(r + step + 1 for r in process_set.ranks))
        assert hvd.synchronize(handle).tolist() == [expected] * 50


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_other_reductions(sets, op):
    combine = {
        hvd.Min: lambda stack: stack.amin(0),
        hvd.Max: lambda stack: stack.amax(0),
        hvd.Product: lambda stack: stack.prod(0),
    }[op]
    for process_set in sets.mine():
        expected = combine(torch.stack([given(r, 4) for r in process_set.ranks]))
        mine = given(hvd.rank(), 4)
        torch.testing.assert_close(hvd.allreduce(mine, op=op, process_set=process_set), expected)
        assert hvd.allreduce_(mine, op=op, process_set=process_set) is mine
        torch.testing.assert_close(mine, expected)


def test_in_place_forms_and_objects(sets):
    for process_set in sets.mine():
        ranks, root = process_set.ranks, process_set.ranks[-1]
        tensors = [given(hvd.rank(), 4), given(hvd.rank(), 2)]
        hvd.grouped_allreduce_(tensors, op=hvd.Sum, process_set=process_set)
        torch.testing.assert_close(tensors[1], torch.stack([given(r, 2) for r in ranks]).sum(0))
        tensor = given(hvd.rank(), 3)
        assert hvd.broadcast_(tensor, root, process_set=process_set) is tensor
        torch.testing.assert_close(tensor, given(root, 3))
        assert hvd.broadcast_object([hvd.rank()], root, process_set=process_set) == [root]
        assert hvd.allgather_object(hvd.rank(), process_set=process_set) == ranks
        params = {"a": given(hvd.rank(), 2), "b": given(hvd.rank(), 1)}
        hvd.broadcast_parameters(params, root, process_set=process_set)
        torch.testing.assert_close(params["a"], given(root, 2))
        hvd.barrier(process_set=process_set)
        dense = torch.zeros(8, 3, dtype=torch.float64)
        dense[hvd.rank()] = 1
        reduced = hvd.sparse_allreduce_async(dense.to_sparse(1), "rows", hvd.Average, process_set)
        summed = reduced().to_dense().sum(1)
        assert summed.nonzero().flatten().tolist() == ranks
        torch.testing.assert_close(summed.sum(), torch.tensor(3.0).double())


def test_training_on_a_set(sets):
    """DistributedOptimizer trains as one process on the data of the set's ranks."""
    for process_set in sets.mine():
        torch.manual_seed(5)
        model, reference = torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2).double()
        reference.load_state_dict(model.state_dict())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            model.named_parameters(),
            process_set=process_set,
        )
        hvd.broadcast_optimizer_state(optimizer, process_set.ranks[0], process_set=process_set)
        alone = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            model(given(hvd.rank(), 4, step)).square().mean().backward()
            optimizer.step()
            alone.zero_grad()
            for r in process_set.ranks:
                loss = reference(given(r, 4, step)).square().mean()
                (loss / len(process_set.ranks)).backward()
            alone.step()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_rank_outside_gets_an_error_at_the_call(sets):
    tensor = torch.ones(2 * hvd.size())
    calls = {
        "allreduce": lambda ps: hvd.allreduce(tensor, process_set=ps),
        "allreduce_": lambda ps: hvd.allreduce_(tensor, process_set=ps),
        "grouped_allreduce": lambda ps: hvd.grouped_allreduce([tensor], process_set=ps),
        "allgather": lambda ps: hvd.allgather(tensor, process_set=ps),
        "grouped_allgather": lambda ps: hvd.grouped_allgather([tensor], process_set=ps),
        "broadcast": lambda ps: hvd.broadcast(tensor, ps.ranks[0], process_set=ps),
        "alltoall": lambda ps: hvd.alltoall(tensor, process_set=ps),
        "reducescatter": lambda ps: hvd.reducescatter(tensor, process_set=ps),
        "grouped_reducescatter": lambda ps: hvd.grouped_reducescatter([tensor], process_set=ps),
        "barrier": lambda ps: hvd.barrier(ps),
        "broadcast_object": lambda ps: hvd.broadcast_object(1, ps.ranks[0], process_set=ps),
        "allgather_object": lambda ps: hvd.allgather_object(1, process_set=ps),
    }
    for process_set in sets.all.values():
        if not process_set.included():
            for call in calls.values():
                with pytest.raises(ValueError, match="process set"):
                    call(process_set)
            with pytest.raises(ValueError):
                process_set.rank()
    hvd.barrier()


def test_a_root_outside_the_set(sets):
    for process_set in sets.mine():
        outside = [r for r in range(hvd.size()) if r not in process_set.ranks]
        for root in [*outside, hvd.size(), -1]:
            with pytest.raises(ValueError, match="root"):
                hvd.broadcast(torch.ones(2), root, process_set=process_set)
        hvd.barrier(process_set)
