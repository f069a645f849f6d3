"""overlap_forward: the numbers of a step that waits, whatever looks at the parameters."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import perseus.torch.horovod as hvd  # noqa: E402

STEPS = 4


@pytest.fixture(autouse=True)
def nothing_is_compiled(horovod):
    forget_compiled_code()


class Tied(nn.Module):
    """One weight is also used without its owner's forward, one parameter is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.scale = nn.Parameter(torch.ones(16))
        self.unused = nn.Parameter(torch.ones(3))
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.inner(inputs))) * self.scale
        return self.last(F.linear(hidden, self.inner.weight.t()))


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return Tied().double()


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "foreach": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01), amsgrad=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "groups": lambda params: torch.optim.SGD(
        [{"params": part, "lr": 0.1 / (i + 1)} for i, part in enumerate(halves(params))],
        lr=0.1,
        momentum=0.5,
    ),
}


def halves(params):
    params = list(params)
    return params[::2], params[1::2]


def distribute(model, overlap_forward):
    return hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](model.parameters()),
        model.named_parameters(),
        overlap_forward=overlap_forward,
    )


def nothing(model, optimizer):
    pass


def train(overlap_forward, make_optimizer=OPTIMIZERS["sgd"], after_step=nothing, **options):
    """Trains from the same start; gives the model and the optimizer."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(model.parameters()),
        named_parameters=model.named_parameters(),
        overlap_forward=overlap_forward,
        **options,
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    passes = options.get("backward_passes_per_step", 1)
    generator = torch.Generator().manual_seed(2 + hvd.rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            inputs = torch.randn(5, 8, generator=generator).double()
            labels = torch.randint(0, 3, (5,), generator=generator)
            F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        scheduler.step()
        after_step(model, optimizer)
    return model, optimizer


def assert_equal(ours, theirs):
    """Up to the order of sums, which depends on what is merged with what."""
    model, optimizer = ours
    other_model, other = theirs
    assert_close(model.state_dict(), other_model.state_dict())
    assert_close(optimizer.state_dict()["state"], other.state_dict()["state"])


def assert_close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_numbers_are_those_of_a_step_that_waits(name):
    assert_equal(train(True, OPTIMIZERS[name]), train(False, OPTIMIZERS[name]))


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2},
        {"backward_passes_per_step": 2},
        {"compression": hvd.Compression.fp16},
        {"op": hvd.Sum},
        {"op": hvd.Adasum},
        {"gradient_predivide_factor": 2.0},
    ],
    ids=lambda options: ",".join(options),
)
def test_every_option_keeps_the_numbers(options):
    assert_equal(train(True, **options), train(False, **options))


def is_deferred(param) -> bool:
    return "_perseus_updates" in param.__dict__


def test_a_step_does_not_wait_and_the_forward_pass_waits_layer_by_layer(two_ranks):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap_forward=True
    )
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    inputs, labels = torch.randn(5, 8).double(), torch.arange(5) % 3
    if hvd.rank() != 0:
        hvd.barrier()  # rank 0 comes here after its step
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    if hvd.rank() == 0:
        assert all(map(is_deferred, model.parameters()))
        assert isinstance(model.scale, nn.Parameter)
        assert model.scale.grad is None
        hvd.barrier()

    seen = []
    model.last.register_forward_pre_hook(lambda *_: seen.append(is_deferred(model.inner.weight)))
    model(inputs)
    assert seen == [False]
    optimizer.apply_updates()
    for name, value in model.named_parameters():
        assert not is_deferred(value)
        assert type(value) is nn.Parameter
        if name != "inner.bias":  # what comes after it takes the mean away
            assert torch.equal(before[name], value) == (name == "unused"), name


def gradients_of(model):
    return [param.grad for param in model.parameters() if param.grad is not None]


# Any code that looks at a parameter sees it updated.
LOOKS = {
    "state_dict": lambda model, optimizer: model.state_dict(),
    "function": lambda model, optimizer: model.last.weight.sum().item(),
    "list": lambda model, optimizer: torch.cat([p.flatten() for p in model.parameters()]),
    "nested": lambda model, optimizer: torch.nn.utils.parameters_to_vector(model.parameters()),
    "data": lambda model, optimizer: model.last.weight.data.clone(),
    "numpy": lambda model, optimizer: model.last.weight.detach().numpy().sum(),
    "foreach": lambda model, optimizer: torch._foreach_norm(list(model.parameters())),
    "evaluate": lambda model, optimizer: evaluate(model, torch.no_grad()),
    "inference": lambda model, optimizer: evaluate(model, torch.inference_mode()),
    "autocast": lambda model, optimizer: evaluate(model, torch.autocast("cpu", torch.bfloat16)),
    "deepcopy": lambda model, optimizer: copy.deepcopy(model),
    "pickle": lambda model, optimizer: pickle.dumps(model.last),
    "save": lambda model, optimizer: torch.save(model, io.BytesIO()),
    "optimizer_state": lambda model, optimizer: optimizer.state[model.last.weight],
    "optimizer_state_dict": lambda model, optimizer: optimizer.state_dict(),
    "synchronize_parameters": lambda model, optimizer: hvd.broadcast_parameters(
        model.state_dict(), 0
    ),
    "model_zero_grad": lambda model, optimizer: model.zero_grad(),
    "model_zero_grad_in_place": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "gradient_norm": lambda model, optimizer: torch.nn.utils.clip_grad_norm_(
        model.parameters(), float("inf")
    ),
    "gradient_data": lambda model, optimizer: [grad.data.zero_() for grad in gradients_of(model)],
    "gradients_to_none": lambda model, optimizer: [
        setattr(param, "grad", None) for param in model.parameters()
    ],
    "half_and_back": lambda model, optimizer: model.double(),
}


def evaluate(model, context: contextlib.AbstractContextManager[None]) -> None:
    model.eval()
    with context:
        model(torch.ones(2, 8).double())
    model.train()


@pytest.mark.parametrize("name", LOOKS)
def test_whoever_looks_sees_the_updated_parameters(name):
    look = LOOKS[name]
    assert_equal(
        train(True, OPTIMIZERS["adam"], look),
        train(False, OPTIMIZERS["adam"], look),
    )


def test_gradients_seen_after_the_step_are_reduced():
    def seen(overlap_forward):
        grads = []

        def look(model, _):
            grads.extend(grad.clone() for grad in gradients_of(model))

        train(overlap_forward, after_step=look)
        return grads

    assert_close(seen(True), seen(False))


def test_a_copy_is_an_ordinary_model():
    model, _ = train(True)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(type(param) is nn.Parameter for param in copied.parameters())
        for ours, theirs in zip(copied.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_gradients_that_are_not_cleared_add_up_as_without():
    def train_without_clearing(overlap_forward):
        model = make_model()
        optimizer = distribute(model, overlap_forward)
        inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(3)).double()
        for _ in range(3):
            model(inputs).square().mean().backward()
            optimizer.step()
        return model, optimizer

    assert_equal(train_without_clearing(True), train_without_clearing(False))


def test_clipped_gradients_are_used_at_once():
    def train_clipped(overlap_forward):
        model = make_model()
        optimizer = distribute(model, overlap_forward)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 8).double() * torch.arange(4).unsqueeze(1)).sum().backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
            assert not any(map(is_deferred, model.parameters()))
        return model, optimizer

    assert_equal(train_clipped(True), train_clipped(False))


def test_step_hooks_and_closures_are_served_at_once(two_ranks, step_hooks):
    model, optimizer = train(True)
    steps = []
    handle = optimizer.register_step_post_hook(lambda *_: steps.append(1))
    model(torch.ones(2, 8).double()).sum().backward()
    optimizer.step()
    assert steps == [1]
    assert not any(map(is_deferred, model.parameters()))
    handle.remove()

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8).double()).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) is not None
    assert not any(map(is_deferred, model.parameters()))


def test_shutdown_and_the_end_of_an_optimizer_lose_nothing():
    model, _ = train(True)
    reference, _ = train(False)
    hvd.shutdown()
    assert_close(model.state_dict(), reference.state_dict())
    hvd.init()


def test_the_model_may_be_wrapped_again_while_updates_are_put_off():
    def train_in_phases(overlap_forward):
        model = make_model()
        for phase in range(3):
            optimizer = distribute(model, overlap_forward)
            for step in range(2):
                optimizer.zero_grad()
                model(inputs_of(phase + step)).square().mean().backward()
                optimizer.step()
        return model, optimizer

    assert_equal(train_in_phases(True), train_in_phases(False))


def inputs_of(step: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).double()


def test_a_group_may_be_added_while_updates_are_put_off():
    def train_growing(overlap_forward):
        model = make_model()
        added = nn.Parameter(torch.ones(3).double())
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["sgd"](model.parameters()), overlap_forward=overlap_forward
        )
        for step in range(3):
            optimizer.zero_grad()
            (model(inputs_of(step)) * added).square().mean().backward()
            optimizer.step()
            if step == 0:
                optimizer.add_param_group({"params": [added], "lr": 0.1})
        return model, optimizer

    assert_equal(train_growing(True), train_growing(False))


@pytest.mark.parametrize("change", ["none", "replaced", "new_data"])
def test_gradients_changed_between_backward_and_step(change):
    def train_changing(overlap_forward):
        model = make_model()
        optimizer = distribute(model, overlap_forward)
        for step in range(3):
            optimizer.zero_grad()
            model(inputs_of(step)).square().mean().backward()
            grad = model.last.weight.grad
            if change == "none":
                model.last.weight.grad = None
            elif change == "replaced":
                model.last.weight.grad = grad.clone()
            else:
                grad.data = grad.data.clone()
            optimizer.step()
        return model, optimizer

    assert_equal(train_changing(True), train_changing(False))


def test_other_threads_wait_for_the_update(two_ranks):
    def train_watched(overlap_forward):
        outputs = []

        def look(model, _):
            def evaluate():
                with torch.no_grad():
                    outputs.append(model(torch.ones(1, 8).double()))

            model.eval()
            threads = [threading.Thread(target=evaluate) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            model.train()

        train(overlap_forward, after_step=look)
        return outputs

    assert_close(train_watched(True), train_watched(False))


def test_a_trace_does_not_contain_the_update(two_ranks):
    model, _ = train(True)
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, torch.ones(1, 8).double())
    assert_close(traced(torch.ones(2, 8).double()), model(torch.ones(2, 8).double()))


def test_an_optimizer_with_state_in_its_groups_is_an_error(two_ranks):
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                group["count"] = group.get("count", 0) + 1
            return super().step(closure)

    with pytest.raises(RuntimeError, match="keeps 'count' in its parameter groups"):
        train(True, lambda params: Counting(params, lr=0.1))


def test_what_python_does_not_see_is_noticed_by_backward(two_ranks):
    model = nn.Linear(2, 1).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        overlap_forward=True,
    )
    model(torch.ones(1, 2).double()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch._C.DisableTorchFunctionSubclass():
        result = F.linear(torch.ones(1, 2).double(), model.weight)
    with pytest.raises(RuntimeError, match="apply_updates"):
        result.sum().backward()
    optimizer.apply_updates()


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_torchscript_sees_the_updated_parameters(two_ranks):
    def train_scripted(overlap_forward):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        scripted = torch.jit.trace(model, torch.ones(1, 8).double())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(scripted.parameters(), lr=0.1), overlap_forward=overlap_forward
        )
        for step in range(3):
            optimizer.zero_grad()
            scripted((torch.ones(1, 8) * step).double()).sum().backward()
            optimizer.step()
        return scripted, optimizer

    assert_equal(train_scripted(True), train_scripted(False))


def test_lbfgs_is_refused():
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.DistributedOptimizer(torch.optim.LBFGS(make_model().parameters()), overlap_forward=True)


def test_a_failed_reduction_is_raised_by_the_forward_pass(two_ranks):
    model = nn.Linear(2, 1 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap_forward=True
    )
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(hvd.HorovodInternalError, match="weight"):
        model(torch.ones(1, 2))
    assert not any(map(is_deferred, model.parameters()))
    assert torch.equal(before, model.weight)
    model(torch.ones(1, 2))


def forget_compiled_code():
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("compiled", ["module", "function"])
def test_compiled_code_sees_the_updated_parameters(two_ranks, compiled):
    def train_compiled(overlap_forward):
        forget_compiled_code()
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        if compiled == "module":
            run = torch.compile(model, backend="eager")
        else:
            run = torch.compile(lambda inputs: model(inputs) * 2, backend="eager")
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), overlap_forward=overlap_forward
        )
        for step in range(3):
            optimizer.zero_grad()
            run((torch.ones(1, 8) * (step + 1)).double()).sum().backward()
            optimizer.step()
        frames = torch._dynamo.utils.counters["frames"]["total"]
        return model, optimizer, frames

    *ours, frames = train_compiled(True)
    *theirs, frames_without = train_compiled(False)
    assert_equal(ours, theirs)
    assert frames == frames_without


def test_parameters_that_are_unfrozen_later_are_updated_in_forward(two_ranks):
    def train_unfrozen(overlap_forward):
        model = make_model()
        model.last.requires_grad_(False)
        optimizer = distribute(model, overlap_forward)
        model.last.requires_grad_(True)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 8).double() * torch.arange(4).unsqueeze(1)).sum().backward()
            optimizer.step()
        return model, optimizer

    assert_equal(train_unfrozen(True), train_unfrozen(False))
