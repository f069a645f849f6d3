"""broadcast_optimizer_state: every optimizer of torch.optim, and what states there can be."""

from __future__ import annotations

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def classes() -> list[type[torch.optim.Optimizer]]:
    found = [
        value
        for _, value in sorted(vars(torch.optim).items())
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    ]
    assert len(found) >= 13  # as PyTorch 2.1 has
    return found


BROADCAST = [cls for cls in classes() if cls is not torch.optim.LBFGS]


def root() -> int:
    return hvd.size() - 1


class Model(torch.nn.Module):
    """A model that every class can train: only matrices for Muon, sparse gradients for
    SparseAdam."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(6, 4, sparse=sparse)
        self.layer = None if sparse else torch.nn.Linear(4, 3, bias=False)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        rows = self.table(indices)
        return rows if self.layer is None else self.layer(rows)


def make(cls, seed: int, **options):
    torch.manual_seed(seed)
    model = Model(sparse=cls is torch.optim.SparseAdam)
    if cls is torch.optim.SGD:
        options = {"momentum": 0.9, **options}
    return model, cls(model.parameters(), **{"lr": 0.01, **options})


def train(model, optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(0, 6, (5,), generator=generator)).square().sum().backward()
        optimizer.step()


def as_plain(value):
    """A state_dict that can be compared, pickled and sent."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: as_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(as_plain(inner) for inner in value)
    return value


def assert_all_have_what_the_root_had(optimizer, before) -> None:
    states = hvd.allgather_object(as_plain(optimizer.state_dict()))
    expected = hvd.broadcast_object(as_plain(before), root())
    assert states == [expected] * hvd.size()


@pytest.mark.parametrize("distributed", [False, True], ids=["plain", "distributed"])
@pytest.mark.parametrize("used", ["nowhere", "on the root", "elsewhere", "everywhere"])
@pytest.mark.parametrize("cls", BROADCAST, ids=lambda cls: cls.__name__)
def test_every_class(cls, used, distributed):
    """All ranks go on alike, whoever had a state before and whatever its options."""
    is_root = hvd.rank() == root()
    model, optimizer = make(cls, hvd.rank(), lr=0.03 if is_root else 0.01)
    if used == "everywhere" or (used != "nowhere" and is_root == (used == "on the root")):
        train(model, optimizer, 1 + 2 * is_root, seed=hvd.rank())
    before = copy.deepcopy(optimizer.state_dict())
    params = [param.detach().clone() for param in model.parameters()]
    gradients = [param.grad for param in model.parameters()]
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root())
    assert_all_have_what_the_root_had(optimizer, before)
    for param, old, gradient in zip(model.parameters(), params, gradients, strict=True):
        assert torch.equal(param, old)
        if gradient is None and not before["state"]:
            assert not param.grad.to_dense().any()  # as with Horovod
            assert param.grad.is_sparse == (cls is torch.optim.SparseAdam)
        else:
            assert param.grad is gradient
    hvd.broadcast_parameters(model.state_dict(), root())
    train(model, optimizer, 2, seed=0)
    ranks = hvd.allgather_object(as_plain(model.state_dict()))
    assert ranks == [ranks[0]] * hvd.size()


def test_gradients_of_sparse_embeddings_and_of_frozen_parameters():
    model = Model(sparse=True)
    frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer = torch.optim.SGD([model.table.weight, frozen], lr=0.1)
    hvd.broadcast_optimizer_state(optimizer, root(), model=model)
    assert model.table.weight.grad.is_sparse
    assert frozen.grad is None
    train(model, optimizer, 1, seed=0)


@pytest.mark.parametrize("cls", BROADCAST, ids=lambda cls: cls.__name__)
def test_a_step_after_it_is_the_step_of_the_root(cls):
    """The state is all that a step depends on: a copy of the root's optimizer does the same."""
    model, optimizer = make(cls, seed=3)
    train(model, optimizer, 2, seed=4)
    reference = copy.deepcopy(model)
    alone = cls(reference.parameters(), **{"lr": 0.01})
    alone.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    if hvd.rank() != root():
        model, optimizer = make(cls, seed=3)
        model.load_state_dict(reference.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root())
    train(model, optimizer, 3, seed=5)
    train(reference, alone, 3, seed=5)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_options_of_every_kind():
    model, optimizer = make(torch.optim.Adam, seed=0)
    groups = [{"params": [p], "name": f"group {i}"} for i, p in enumerate(model.parameters())]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    if hvd.rank() == root():
        optimizer.param_groups[0].update(
            lr=0.25, betas=(0.5, 0.75), amsgrad=True, maximize=True, weight_decay=0.125, eps=1e-3
        )
        optimizer.param_groups[1].update(initial_lr=2.0, own={"of": ["the", "user"]}, nothing=None)
    hvd.broadcast_optimizer_state(optimizer, root())
    first, second = optimizer.param_groups
    assert [first[key] for key in ("lr", "amsgrad", "maximize", "eps")] == [0.25, True, True, 1e-3]
    assert first["betas"] == (0.5, 0.75) and type(first["betas"]) is tuple
    assert second["initial_lr"] == 2.0 and second["own"] == {"of": ["the", "user"]}
    assert second["nothing"] is None and second["lr"] == 0.1
    for group, param in zip((first, second), model.parameters(), strict=True):
        assert group["params"][0] is param
    train(model, optimizer, 1, seed=0)


def test_a_learning_rate_that_is_a_tensor():
    model, _ = make(torch.optim.Adam, seed=0)
    rate = torch.tensor(0.5 if hvd.rank() == root() else 0.125)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=False, foreach=False)
    hvd.broadcast_optimizer_state(optimizer, root())
    (group,) = optimizer.param_groups
    assert isinstance(group["lr"], torch.Tensor) and group["lr"].item() == 0.5
    train(model, optimizer, 1, seed=0)


@pytest.mark.parametrize("root_has_it", [False, True])
def test_a_learning_rate_that_is_a_tensor_on_some_ranks_only(root_has_it):
    model, _ = make(torch.optim.SGD, seed=0)
    is_tensor = (hvd.rank() == root()) == root_has_it
    rate = 0.25 if hvd.rank() == root() else 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(rate) if is_tensor else rate)
    hvd.broadcast_optimizer_state(optimizer, root())
    (group,) = optimizer.param_groups
    assert float(group["lr"]) == 0.25
    assert isinstance(group["lr"], torch.Tensor) == root_has_it


def test_a_state_of_the_users_own_making():
    """Tensors in lists, dicts and tuples, numbers, text, and tensors of other types."""

    class Own(torch.optim.SGD):
        pass

    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = Own([param], lr=0.1)
    value = float(hvd.rank())
    if hvd.rank() == root():
        optimizer.state[param] = {
            "list": [torch.full((2,), value), 3],
            "tuple": (torch.tensor(value), "text"),
            "dict": {"inner": torch.tensor([1, 2], dtype=torch.int64)},
            "bits": torch.tensor([True, False]),
            "half": torch.full((3,), value, dtype=torch.bfloat16),
            "empty": torch.empty(0, 4),
            "none": None,
        }
    hvd.broadcast_optimizer_state(optimizer, root())
    state = as_plain(optimizer.state[param])
    assert hvd.allgather_object(state) == [state] * hvd.size()
    assert optimizer.state[param]["list"][0].tolist() == [root()] * 2
    assert type(optimizer.state[param]["tuple"]) is tuple


def test_state_that_is_not_contiguous():
    param = torch.nn.Parameter(torch.zeros(2, 3))
    optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
    buffer = torch.arange(6.0).reshape(3, 2).t() + hvd.rank()
    optimizer.state[param]["momentum_buffer"] = buffer
    hvd.broadcast_optimizer_state(optimizer, root())
    expected = torch.arange(6.0).reshape(3, 2).t() + root()
    assert torch.equal(optimizer.state[param]["momentum_buffer"], expected)


def test_lbfgs_is_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match=r"LBFGS"):
        optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))])
        hvd.broadcast_optimizer_state(optimizer, root())
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_an_optimizer_without_any_state():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 if hvd.rank() == root() else 0.1)
    hvd.broadcast_optimizer_state(optimizer, root())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert not optimizer.state


def test_schedulers_go_on_from_the_root_s_rate():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 if hvd.rank() == root() else 8.0)
    hvd.broadcast_optimizer_state(optimizer, root())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
