"""DistributedOptimizer: N ranks train as one process does on all their data."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402
from perseus.torch.horovod.parameter_groups import checked_groups  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 3),
    ).double()


def make_data(steps: int, passes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels [step, pass, rank, sample], the same on all ranks."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(steps, passes, hvd.size(), 4, 8, generator=generator).double()
    labels = torch.randint(0, 3, inputs.shape[:4], generator=generator)
    return inputs, labels


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
}


def train_alone(make_optimizer, steps: int, passes: int = 1, scale: float = 1.0):
    """One process, all ranks' data; the loss is the mean over ranks of the sum over passes."""
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    inputs, labels = make_data(steps, passes)
    for step in range(steps):
        optimizer.zero_grad()
        for p in range(passes):
            for r in range(hvd.size()):
                loss = F.cross_entropy(model(inputs[step, p, r]), labels[step, p, r])
                (scale * loss / hvd.size()).backward()
        optimizer.step()
    return model


def assert_same(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def train(model, optimizer, steps: int, passes: int = 1) -> None:
    inputs, labels = make_data(steps, passes)
    for step in range(steps):
        optimizer.zero_grad()
        for p in range(passes):
            F.cross_entropy(
                model(inputs[step, p, hvd.rank()]), labels[step, p, hvd.rank()]
            ).backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_one_process_on_all_data(name):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[name](model.parameters()), named_parameters=model.named_parameters()
    )
    train(model, optimizer, 5)
    assert_same(model, train_alone(OPTIMIZERS[name], 5))


@pytest.mark.parametrize(
    "options",
    [
        {"named_parameters": None},
        {"op": hvd.Average, "gradient_predivide_factor": 2.0},
        {"groups": 2},
        {"groups": 100},
        {"groups": "listed"},
        {"num_groups": 1},
        {"process_set": hvd.global_process_set},
    ],
    ids=lambda options: ",".join(options),
)
def test_options_that_must_not_change_the_result(options):
    model = make_model()
    params = list(model.parameters())
    arguments = {"named_parameters": model.named_parameters(), **options}
    if options.get("groups") == "listed":
        arguments["groups"] = [params[:2], [params[4]]]
    optimizer = OPTIMIZERS["sgd"](params)
    if "num_groups" in options:
        with pytest.warns(DeprecationWarning):
            optimizer = hvd.DistributedOptimizer(optimizer, **arguments)
    else:
        optimizer = hvd.DistributedOptimizer(optimizer, **arguments)
    train(model, optimizer, 3)
    assert_same(model, train_alone(OPTIMIZERS["sgd"], 3))


def test_sum_is_size_times_the_mean():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()),
        named_parameters=model.named_parameters(),
        op=hvd.Sum,
    )
    train(model, optimizer, 3)
    assert_same(model, train_alone(OPTIMIZERS["sgd"], 3, scale=hvd.size()))


@pytest.mark.parametrize("groups", [None, 2])
def test_several_backward_passes_add_up(groups):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=3,
        groups=groups,
    )
    train(model, optimizer, 3, passes=3)
    assert_same(model, train_alone(OPTIMIZERS["sgd"], 3, passes=3))
    optimizer.set_backward_passes_per_step(1)
    train(model, optimizer, 1)


@pytest.mark.parametrize("groups", [None, 2])
def test_fp16_compression_is_close(groups):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
        groups=groups,
    )
    train(model, optimizer, 2)
    reference = train_alone(lambda params: torch.optim.SGD(params, lr=0.1), 2)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)
        assert ours.grad.dtype == torch.float64


def test_gradients_that_are_not_contiguous():
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    before = model.weight.detach().clone()
    image = torch.full((1, 3, 4, 4), float(hvd.rank() + 1)).to(memory_format=torch.channels_last)
    image[:, 1] *= 2
    model(image).sum().backward()
    optimizer.step()
    mean = (hvd.size() + 1) / 2 * 4
    expected = torch.full_like(before, mean)
    expected[:, 1] *= 2
    torch.testing.assert_close(before - model.weight.detach(), expected)


def test_the_class_and_the_state_of_the_optimizer_are_kept():
    model = make_model()
    inner = OPTIMIZERS["sgd"](model.parameters())
    model(torch.ones(1, 8).double()).sum().backward()
    inner.step()
    first = next(model.parameters())
    momentum = inner.state[first]["momentum_buffer"].clone()
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ == "perseus.torch.horovod.optimizer"
    torch.testing.assert_close(optimizer.state[first]["momentum_buffer"], momentum)
    assert optimizer.param_groups[0]["weight_decay"] == 1e-3
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


def test_step_hooks_run_once(step_hooks):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()), named_parameters=model.named_parameters()
    )
    optimizer.load_state_dict(optimizer.state_dict())
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train(model, optimizer, 2)
    assert len(calls) == 2


@pytest.mark.filterwarnings("error:.*lr_scheduler")
@pytest.mark.parametrize("options", [{}, {"overlap_forward": True}, {"op": hvd.Adasum}], ids=str)
def test_a_scheduler_made_before_or_after_works(options):
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(
        inner, named_parameters=model.named_parameters(), **options
    )
    optimizer.load_state_dict(optimizer.state_dict())
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, 1)
    before.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_clipping_between_synchronize_and_step():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    inputs, labels = make_data(1)
    loss = 100 * F.cross_entropy(model(inputs[0, 0, hvd.rank()]), labels[0, 0, hvd.rank()])
    loss.backward()
    optimizer.synchronize()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert norm > 0.1
    clipped = [param.grad.clone() for param in model.parameters()]
    with optimizer.skip_synchronize():
        optimizer.step()
    for param, grad in zip(model.parameters(), clipped, strict=True):
        torch.testing.assert_close(param.grad, grad)
    sums = hvd.allgather(torch.stack([param.detach().sum() for param in model.parameters()])[None])
    assert (sums == sums[0]).all()


def test_step_after_synchronize_warns(two_ranks):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )
    model(torch.ones(1, 8).double()).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize") as warned:
        optimizer.step()
    assert warned[0].filename == __file__


def test_a_closure_sees_reduced_gradients():
    def run(optimizer_of, parts):
        model = make_model()
        optimizer = optimizer_of(model)
        inputs, labels = make_data(2)

        for step in range(2):

            def closure(step=step):
                optimizer.zero_grad()
                loss = sum(
                    F.cross_entropy(model(inputs[step, 0, r]), labels[step, 0, r]) for r in parts
                ) / len(parts)
                loss.backward()
                return loss

            optimizer.step(closure)
        return model

    def distributed(model):
        return hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
        )

    ours = run(distributed, [hvd.rank()])
    alone = run(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), range(hvd.size()))
    assert_same(ours, alone)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_follows_the_loss_of_all_ranks(line_search):
    """The ranks' own losses would lead them to different points, or numbers of evaluations."""

    def run(optimizer_of, parts):
        model = make_model()
        optimizer = optimizer_of(model)
        inputs, labels = make_data(1)

        def closure():
            optimizer.zero_grad()
            loss = sum(
                F.cross_entropy(model(inputs[0, 0, r]), labels[0, 0, r]) for r in parts
            ) / len(parts)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        return model, losses

    def lbfgs(model):
        return torch.optim.LBFGS(model.parameters(), max_iter=8, line_search_fn=line_search)

    ours, losses = run(lambda model: hvd.DistributedOptimizer(lbfgs(model)), [hvd.rank()])
    alone, expected = run(lbfgs, range(hvd.size()))
    assert losses == pytest.approx(expected, rel=1e-6)
    for mine, theirs in zip(ours.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    weights = [param.tolist() for param in ours.parameters()]
    assert hvd.allgather_object(weights) == [weights] * hvd.size()


def test_parameters_without_gradients_get_those_of_others():
    size, rank = hvd.size(), hvd.rank()
    used = torch.nn.Parameter(torch.zeros(3))
    sometimes = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([used, sometimes], lr=1.0),
        named_parameters=[("used", used), ("sometimes", sometimes)],
        op=hvd.Sum,
    )
    loss = used.sum() + (sometimes.sum() if rank == 0 else 0)
    loss.backward()
    optimizer.step()
    assert used.tolist() == [-float(size)] * 3
    assert sometimes.tolist() == [-1.0] * 3


def test_parameters_frozen_for_a_while():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for frozen in (False, True, False):
        for param in model[0].parameters():
            param.requires_grad_(not frozen)
        train(model, optimizer, 1)
    sums = hvd.allgather(torch.stack([param.detach().sum() for param in model.parameters()])[None])
    assert (sums == sums[0]).all()


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients(sparse_as_dense):
    torch.manual_seed(3)
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    reference = copy.deepcopy(embedding)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(embedding.parameters(), lr=1.0),
        named_parameters=embedding.named_parameters(),
        sparse_as_dense=sparse_as_dense,
    )
    indices = torch.tensor([[1, 2], [3, 2], [9, 9], [0, 1]])
    embedding(indices[hvd.rank() % 4]).sum().backward()
    optimizer.step()
    alone = torch.optim.SGD(reference.parameters(), lr=1.0)
    sum(reference(indices[r % 4]).sum() / hvd.size() for r in range(hvd.size())).backward()
    alone.step()
    torch.testing.assert_close(embedding.weight, reference.weight)


class TestMistakes:
    @pytest.fixture
    def model(self, two_ranks):
        return make_model()

    @staticmethod
    def distribute(model, **options):
        return hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            **{"named_parameters": model.named_parameters(), **options},
        )

    def test_too_many_backward_passes(self, model):
        optimizer = self.distribute(model)
        model(torch.ones(1, 8).double()).sum().backward()
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            model(torch.ones(1, 8).double()).sum().backward()
        with pytest.warns(UserWarning, match="changed in place"):  # by the second backward
            optimizer.synchronize()

    def test_zero_grad_while_gradients_move(self, model):
        optimizer = self.distribute(model)
        model(torch.ones(1, 8).double()).sum().backward()
        with pytest.raises(AssertionError, match="zero_grad"):
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert all(param.grad is None for param in model.parameters())

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
            ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor is 0.0"),
            ({"gradient_predivide_factor": float("nan")}, "gradient_predivide_factor is nan"),
            ({"op": 9}, r"op is 9, which is not a reduction; there are Average \(0\), Sum \(1\), "),
            ({"op": -1}, "op is -1"),
            ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
            ({"named_parameters": ["weight"]}, "tuples"),
            ({"named_parameters": [("a", torch.ones(1)), ("a", torch.ones(1))]}, "duplicates"),
            ({"named_parameters": [("a", torch.ones(1))]}, "not named"),
            ({"groups": 0}, "groups"),
            ({"groups": [["a"]]}, "groups"),
            ({"groups": [1, 2]}, "groups must consist of lists of tensors, but one is of type int"),
            ({"groups": [torch.ones(2)]}, "groups must consist of lists of tensors"),
            ({"process_set": hvd.ProcessSet([0])}, "not registered"),
        ],
    )
    def test_arguments(self, model, options, message):
        with pytest.raises(ValueError, match=message):
            self.distribute(model, **options)

    def test_groups_of_what_can_be_read_once(self, model):
        first, second, *_ = model.parameters()
        assert checked_groups([iter([first]), iter([second])]) == [[first], [second]]

    def test_a_parameter_in_two_groups(self, model):
        params = list(model.parameters())
        with pytest.raises(ValueError, match="groups"):
            self.distribute(model, groups=[params[:2], params[1:3]])

    def test_ranks_with_different_models_fail_and_go_on(self, two_ranks):
        model = torch.nn.Linear(3, 2 + hvd.rank() % 2)
        optimizer = self.distribute(model)
        model(torch.ones(1, 3)).sum().backward()
        with pytest.raises(hvd.HorovodInternalError):
            optimizer.step()
        model = torch.nn.Linear(3, 2)
        optimizer = self.distribute(model)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    def test_an_optimizer_that_is_gone_leaves_the_parameters_alone(self, model):
        self.distribute(model)
        with pytest.warns(UserWarning, match="has a gradient that is not reduced"):
            model(torch.ones(1, 8).double()).sum().backward()
        model(torch.ones(1, 8).double()).sum().backward()


def test_a_rank_outside_the_set_steps_by_itself(two_ranks, monkeypatch):
    hvd.barrier()
    hvd.shutdown()
    monkeypatch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    only_first = hvd.add_process_set([0])
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        process_set=only_first,
    )
    model(torch.full((1, 1), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert model.weight.item() == -(hvd.rank() + 1.0)
    hvd.barrier()
    hvd.shutdown()


class TestGradientsTouchedBeforeStep:
    """Without a synchronize between backward and step: the reduction has the last word."""

    @pytest.mark.parametrize("options", [{}, {"groups": 1}], ids=str)
    @pytest.mark.parametrize("touch", ["replace", "new_data", "other_dtype_and_back"])
    def test_what_is_reduced_is_used(self, touch, options):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(), **options
        )
        inputs, labels = make_data(3)
        for step in range(3):
            optimizer.zero_grad()
            output = model(inputs[step, 0, hvd.rank()])
            F.cross_entropy(output, labels[step, 0, hvd.rank()]).backward()
            if hvd.size() > 1:
                for param in model.parameters():
                    if touch == "replace":
                        param.grad = torch.full_like(param.grad, hvd.rank())
                    elif touch == "new_data":
                        param.grad.data = torch.full_like(param.grad, hvd.rank())
                    else:
                        param.grad.data = param.grad.data.float().double()
            optimizer.step()
        assert_same(model, train_alone(OPTIMIZERS["sgd"], 3))

    def test_a_change_in_place_is_a_warning(self, two_ranks):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), model.named_parameters()
        )
        model(torch.ones(2, 8).double()).sum().backward()
        next(model.parameters()).grad.mul_(1.0)
        with pytest.warns(UserWarning, match=r"changed in place .*0\.weight"):
            optimizer.step()
