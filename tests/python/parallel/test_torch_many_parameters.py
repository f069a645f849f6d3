"""Models of very many small parameters, whose gradients are reduced some at a time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import perseus.torch.horovod as hvd  # noqa: E402
import perseus_core  # noqa: E402
from perseus.torch.horovod import buckets  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")

NUMBER = buckets.MANY + 2 * buckets.RUN + 3


class Many(torch.nn.Module):
    """The loss is linear, so each gradient is its factor; an embedding's is sparse if asked for."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.small = torch.nn.ParameterList(torch.zeros(1 + i % 7) for i in range(NUMBER))
        self.large = torch.nn.Parameter(torch.zeros(buckets.SMALL // 4 + 1))
        self.table = torch.nn.Embedding(10, 3, sparse=sparse)

    def loss(self, factor: float, skipped: int = -1) -> torch.Tensor:
        terms = [p.sum() * (factor + i) for i, p in enumerate(self.small) if i != skipped]
        rows = self.table(torch.tensor([hvd.rank(), 5]))
        return sum(terms) + self.large.sum() * factor + rows.sum() * factor


def optimizer_of(model: Many, **options) -> torch.optim.Optimizer:
    named = list(model.named_parameters())
    if hvd.rank() % 2:  # names count, not places
        named.reverse()
    sgd = torch.optim.SGD([param for _, param in named], lr=1.0)
    return hvd.DistributedOptimizer(sgd, named_parameters=named, **options)


def start_anew() -> None:
    """Ends operations that are under way and would never complete."""
    hvd.shutdown()
    hvd.init()


def dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_dense() if grad.is_sparse else grad


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
def test_every_gradient_is_the_average(sparse: bool, compression) -> None:
    model = Many(sparse)
    optimizer = optimizer_of(model, compression=compression)
    mean = sum(range(1, hvd.size() + 1)) / hvd.size()
    for _ in range(3):
        optimizer.zero_grad()
        # The parameter that rank 0 does not use counts as zeros there.
        model.loss(hvd.rank() + 1.0, skipped=40 if hvd.rank() == 0 else -1).backward()
        optimizer.synchronize()
        for i, param in enumerate(model.small):
            expected = mean + i
            if i == 40:
                expected -= 41 / hvd.size()
                if hvd.size() == 1:  # nobody has one
                    assert param.grad is None
                    continue
            assert param.grad == pytest.approx(torch.full_like(param, expected), rel=1e-3)
        assert (model.large.grad == mean).all()
        rows = torch.zeros(10, 3)
        for rank in range(hvd.size()):
            rows[rank] += (rank + 1) / hvd.size()
            rows[5] += (rank + 1) / hvd.size()
        assert torch.allclose(dense(model.table.weight.grad), rows, rtol=1e-3)
        with optimizer.skip_synchronize():
            optimizer.step()


@pytest.mark.skipif("hvd.size() == 1")
def test_few_operations_carry_them() -> None:
    model = Many()
    optimizer = optimizer_of(model)
    assert len(optimizer._gradients.buckets) == -(-NUMBER // buckets.RUN) + 2
    model.loss(1.0).backward()
    optimizer.step()
    before = perseus_core.counters()["operations_submitted"]
    model.loss(1.0).backward()
    optimizer.step()
    submitted = perseus_core.counters()["operations_submitted"] - before
    assert submitted == len(optimizer._gradients.buckets) + 1  # the comparison of names


@pytest.mark.skipif("hvd.size() == 1")
def test_one_of_another_shape_is_named_on_every_rank() -> None:
    model = Many()
    if hvd.rank() == 1:
        model.small[77] = torch.nn.Parameter(torch.zeros(100))
    optimizer = optimizer_of(model)
    model.loss(1.0).backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"same shape of small\.77$"):
        optimizer.step()


@pytest.mark.skipif("hvd.size() == 1")
def test_a_change_in_place_names_the_parameter() -> None:
    model = Many()
    optimizer = optimizer_of(model)
    model.loss(1.0).backward()
    model.small[77].grad.add_(0)
    with pytest.warns(UserWarning, match=r"\(small\.77\)"):
        optimizer.step()


@pytest.mark.skipif("hvd.size() == 1")
@pytest.mark.parametrize("missing", [0, 77])
def test_a_parameter_that_one_rank_lacks_is_named_on_every_rank(missing: int) -> None:
    model = Many()
    model.small[missing].requires_grad_(hvd.rank() != 1)
    optimizer = optimizer_of(model)
    model.loss(1.0).backward()
    others = ", ".join(str(rank) for rank in range(hvd.size()) if rank != 1)
    with pytest.raises(hvd.HorovodInternalError, match=rf"'small\.{missing}' is on rank {others} "):
        optimizer.step()
    start_anew()


@pytest.mark.skipif("hvd.size() == 1")
def test_other_names_on_one_rank_are_not_matched_by_their_places() -> None:
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(NUMBER)]
    names = [f"body.{i}" for i in range(NUMBER)]
    names[-3:] = [f"head.of.{hvd.rank()}.{i}" for i in range(3)]
    sgd = torch.optim.SGD(params, lr=1.0)
    optimizer = hvd.DistributedOptimizer(
        sgd, named_parameters=list(zip(names, params, strict=True))
    )
    sum(param.sum() for param in params).backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"'head\.of\.0\.0' is on rank 0 only"):
        optimizer.step()
    start_anew()


def test_names_that_sort_alike_go_to_their_own() -> None:
    names = [f"block.{i}" for i in range(NUMBER)] + ["head.1", "head.01", "head.001"]
    named = {name: torch.nn.Parameter(torch.zeros(2)) for name in names}
    in_order = list(named.items())
    if hvd.rank() % 2:
        in_order.reverse()
    sgd = torch.optim.SGD([param for _, param in in_order], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=in_order)
    sum(param.sum() * i for i, param in enumerate(named.values())).backward()
    optimizer.step()
    for i, param in enumerate(named.values()):
        assert param.grad.tolist() == [i, i]


def test_parts_of_a_model_are_runs_of_their_own() -> None:
    names = [f"{part}.{i}" for part in ("stem", "body", "head") for i in range(NUMBER // 3)]
    named = [(name, torch.nn.Parameter(torch.zeros(2))) for name in names]
    sgd = torch.optim.SGD([param for _, param in named], lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=named)
    if hvd.size() > 1:
        for bucket in optimizer._gradients.buckets:
            assert len({member.partition(".")[0] for member in bucket.members}) == 1


def test_gradients_in_one_buffer_are_no_change_in_place(recwarn) -> None:
    params = [torch.nn.Parameter(torch.zeros(4)) for _ in range(NUMBER)]
    named = [(f"p.{i}", param) for i, param in enumerate(params)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named_parameters=named)
    flat = torch.zeros(4 * NUMBER)
    for param, part in zip(params, flat.split(4), strict=True):
        param.grad = part
    sum(param.sum() * (hvd.rank() + 1) for param in params).backward()
    optimizer.step()
    assert flat.unique().tolist() == [sum(range(1, hvd.size() + 1)) / hvd.size()]
    assert not [warning for warning in recwarn if "in place" in str(warning.message)]


@pytest.mark.skipif("hvd.size() == 1")
def test_gradients_that_wait_for_others_of_their_run_are_not_cleared() -> None:
    model = Many()
    optimizer = optimizer_of(model)
    sum(param.sum() for param in model.small[:5]).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.synchronize()
    optimizer.zero_grad()
