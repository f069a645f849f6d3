"""Adasum, as a reduction and as what DistributedOptimizer does with steps.

The reference is Adasum's definition, in float64: two vectors a and b become
(1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b; of several, neighbours are combined first.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def adasum(vectors: list[torch.Tensor]) -> torch.Tensor:
    vectors = [vector.double() for vector in vectors]
    power = 1 << (len(vectors).bit_length() - 1)
    for i in range(len(vectors) - power):
        vectors[i : i + 2] = [adasum_of_two(*vectors[i : i + 2])]
    while len(vectors) > 1:
        vectors = [adasum_of_two(*vectors[i : i + 2]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def adasum_of_two(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dot = (a * b).sum()
    of_a = 1 - dot / (2 * (a * a).sum()) if a.any() else 1
    of_b = 1 - dot / (2 * (b * b).sum()) if b.any() else 1
    return of_a * a + of_b * b


def inputs(shape, seed: int = 0, dtype=torch.float64) -> list[torch.Tensor]:
    """Returns every rank's input."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).add(0.3).to(dtype)
        for _ in range(hvd.size())
    ]


ROUNDING = {torch.float64: 2**-52, torch.float32: 2**-23, torch.float16: 2**-10}
ROUNDING[torch.bfloat16] = 2**-7


def assert_close(result, expected):
    unit = ROUNDING[result.dtype]
    torch.testing.assert_close(
        result.double(), expected, rtol=0, atol=4 * unit * max(1.0, float(expected.abs().max()))
    )


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("shape", [(1,), (7, 3), (300, 1001)], ids=str)
def test_allreduce(dtype, shape):
    of_ranks = inputs(shape, dtype=dtype)
    result = hvd.allreduce(of_ranks[hvd.rank()], op=hvd.Adasum)
    assert result.dtype == dtype
    assert_close(result, adasum(of_ranks))


def test_factors_apply_before_and_after():
    of_ranks = inputs((50,))
    mine = of_ranks[hvd.rank()].clone()
    hvd.allreduce_(mine, op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0)
    assert_close(mine, 3.0 * adasum([0.5 * tensor for tensor in of_ranks]))


def test_each_tensor_of_a_group_is_combined_for_itself():
    shapes = [(3,), (1000,), (2, 2), (70_000,)]
    of_ranks = [inputs(shape, seed) for seed, shape in enumerate(shapes)]
    results = hvd.grouped_allreduce([of[hvd.rank()] for of in of_ranks], op=hvd.Adasum)
    for result, of in zip(results, of_ranks, strict=True):
        assert_close(result, adasum(of))


def test_many_at_once_are_merged_and_stay_apart():
    of_ranks = [inputs((100,), seed) for seed in range(50)]
    handles = [hvd.allreduce_async(of[hvd.rank()], op=hvd.Adasum) for of in of_ranks]
    for handle, of in zip(handles, of_ranks, strict=True):
        assert_close(hvd.synchronize(handle), adasum(of))


def test_zeros_and_parallel_vectors():
    mine = torch.full((5,), float(hvd.rank() == 0))
    assert_close(hvd.allreduce(mine, op=hvd.Adasum), torch.ones(5).double())
    assert_close(hvd.allreduce(torch.zeros(5), op=hvd.Adasum), torch.zeros(5).double())
    assert_close(hvd.allreduce(torch.ones(5), op=hvd.Adasum), torch.ones(5).double())


def test_a_process_set_and_those_who_have_joined():
    if hvd.size() < 3:
        pytest.skip("needs 3 ranks")
    of_ranks = inputs((20,))
    set_of_two = hvd.ProcessSet([0, 2])
    hvd.shutdown()
    hvd.init(process_sets=[set_of_two])
    if set_of_two.included():
        result = hvd.allreduce(of_ranks[hvd.rank()], op=hvd.Adasum, process_set=set_of_two)
        assert_close(result, adasum([of_ranks[0], of_ranks[2]]))
    if hvd.rank() != 1:
        of_ranks[1] = torch.zeros(20)
        assert_close(hvd.allreduce(of_ranks[hvd.rank()], op=hvd.Adasum), adasum(of_ranks))
    hvd.join()
    hvd.shutdown()
    hvd.init()


def test_the_gradient_is_reduced_alike():
    tensor = torch.ones(4, requires_grad=True)
    of_ranks = inputs((4,), dtype=torch.float32)
    hvd.allreduce(tensor, op=hvd.Adasum).backward(of_ranks[hvd.rank()])
    assert_close(tensor.grad, adasum(of_ranks))


def test_integers_and_other_operations_are_refused():
    with pytest.raises(hvd.HorovodInternalError, match="adasum takes floating types"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)
    with pytest.raises(hvd.HorovodInternalError, match="op adasum is one of allreduce"):
        hvd.reducescatter(torch.ones(8), op=hvd.Adasum)


# ---- DistributedOptimizer

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
}


def make_model(seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    ).double()


def loss_of(model, step: int, of_pass: int, rank: int):
    generator = torch.Generator().manual_seed(1000 * step + 10 * of_pass + rank)
    data = torch.randn(4, 8, generator=generator).double()
    labels = torch.randint(0, 3, (4,), generator=generator)
    return F.cross_entropy(model(data), labels)


def reference(make_optimizer, steps: int, passes: int = 1, clip: float | None = None):
    """Returns the result on all ranks, computed in one process that plays all of them."""
    model = make_model()
    models = [copy.deepcopy(model) for _ in range(hvd.size())]
    optimizers = [make_optimizer(of_rank.parameters()) for of_rank in models]
    for step in range(steps):
        for rank, (of_rank, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            of_rank.load_state_dict(model.state_dict())
            optimizer.zero_grad()
            for of_pass in range(passes):
                loss_of(of_rank, step, of_pass, rank).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(of_rank.parameters(), clip)
            optimizer.step()
        with torch.no_grad():
            for i, param in enumerate(model.parameters()):
                param += adasum([list(m.parameters())[i] - param for m in models])
    return model


def train(model, optimizer, steps: int, passes: int = 1, clip: float | None = None):
    for step in range(steps):
        optimizer.zero_grad()
        for of_pass in range(passes):
            loss_of(model, step, of_pass, hvd.rank()).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def assert_same(model, expected, tolerance=1e-12):
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
        everywhere = hvd.allgather(ours.detach().reshape(1, -1))
        assert all(torch.equal(everywhere[0], of_rank) for of_rank in everywhere)


def distributed(model, name="sgd", **options):
    return hvd.DistributedOptimizer(
        OPTIMIZERS[name](model.parameters()),
        named_parameters=model.named_parameters(),
        op=hvd.Adasum,
        **options,
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("overlap_forward", [False, True])
def test_optimizer_combines_the_ranks_steps(name, overlap_forward):
    model = make_model()
    train(model, distributed(model, name, overlap_forward=overlap_forward), 5)
    assert_same(model, reference(OPTIMIZERS[name], 5))


@pytest.mark.parametrize("options", [{"groups": 2}, {"named_parameters": None}], ids=str)
def test_options_that_change_nothing(options):
    model = make_model()
    arguments = {"named_parameters": model.named_parameters(), **options}
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()), op=hvd.Adasum, **arguments
    )
    train(model, optimizer, 3)
    assert_same(model, reference(OPTIMIZERS["sgd"], 3))


def test_several_backward_passes():
    model = make_model()
    train(model, distributed(model, backward_passes_per_step=3), 2, passes=3)
    assert_same(model, reference(OPTIMIZERS["sgd"], 2, passes=3))


def test_clipped_gradients():
    model = make_model()
    train(model, distributed(model), 3, clip=0.1)
    assert_same(model, reference(OPTIMIZERS["sgd"], 3, clip=0.1))


def test_compressed_differences():
    model = make_model()
    train(model, distributed(model, compression=hvd.Compression.fp16), 3)
    assert_same(model, reference(OPTIMIZERS["sgd"], 3), tolerance=1e-3)


def test_sparse_gradients():
    if hvd.size() == 1:
        pytest.skip("one rank's optimizer is the plain one")
    torch.manual_seed(1)
    table = torch.nn.Embedding(10, 4, sparse=True).double()
    start = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=0.5), table.named_parameters(), op=hvd.Adasum
    )
    table(torch.tensor([hvd.rank(), 9])).sum().backward()
    optimizer.step()
    changes = []
    for rank in range(hvd.size()):
        change = torch.zeros(10, 4).double()
        change[[rank, 9]] -= 0.5
        changes.append(change)
    torch.testing.assert_close(table.weight.detach(), start + adasum(changes))


def test_a_process_set_trains_by_itself():
    if hvd.size() < 3:
        pytest.skip("needs 3 ranks")
    pair = hvd.ProcessSet([0, 1])
    hvd.shutdown()
    hvd.init(process_sets=[pair])
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        model.named_parameters(),
        op=hvd.Adasum,
        process_set=pair,
    )
    (model.weight * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    steps = [torch.tensor([[-1.0]]), torch.tensor([[-2.0]])]
    expected = adasum(steps) if pair.included() else -(hvd.rank() + 1) * torch.ones(1, 1)
    torch.testing.assert_close(model.weight.detach(), expected.double())
    hvd.shutdown()
    hvd.init()


def test_synchronize_does_nothing_and_cannot_be_skipped():
    model = make_model()
    optimizer = distributed(model)
    loss_of(model, 0, 0, hvd.rank()).backward()
    grads = [param.grad.clone() for param in model.parameters()]
    optimizer.synchronize()
    if hvd.size() == 1:
        return
    for param, grad in zip(model.parameters(), grads, strict=True):
        assert torch.equal(param.grad, grad)
    with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
        pass
    optimizer.step()
    for param, grad in zip(model.parameters(), grads, strict=True):
        assert torch.equal(param.grad, grad)


def test_the_closure_is_called_once():
    model = make_model()
    optimizer = distributed(model)
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = loss_of(model, 0, 0, hvd.rank())
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert calls == [1]
    assert_same(model, reference(OPTIMIZERS["sgd"], 1))


def test_arguments_that_do_not_go_with_it():
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        distributed(make_model(), gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        distributed(make_model(), backward_passes_per_step=0)


def test_ranks_with_different_models_fail_and_keep_their_parameters():
    if hvd.size() == 1:
        pytest.skip("one rank's optimizer is the plain one")
    model = torch.nn.Linear(2, 1 + hvd.rank())
    optimizer = distributed(model)
    before = copy.deepcopy(model)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(hvd.HorovodInternalError, match="weight"):
        optimizer.step()
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(ours, theirs)
