"""TorchState(copies=False) in one process: what it copies, when it stops, and what restore does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import perseus.torch.horovod as hvd  # noqa: E402
from perseus_core import driver_link  # noqa: E402


@pytest.fixture(autouse=True)
def elastic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PERSEUS_RANK", "0")
    monkeypatch.setenv("PERSEUS_SIZE", "1")
    hvd.init()
    monkeypatch.setattr(driver_link, "is_elastic", lambda: True)
    monkeypatch.setattr(driver_link, "link", lambda: None)
    yield
    hvd.shutdown()


class Training:
    def __init__(self, kind: str = "sgd", **options: Any) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        parameters = self.model.parameters()
        if kind == "sgd":
            optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        else:
            optimizer = torch.optim.Adam(parameters, lr=0.1, fused=kind == "fused")
        self.optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters())
        self.state = hvd.elastic.TorchState(
            self.model, self.optimizer, copies=False, step=0, **options
        )

    def backward(self) -> None:
        self.optimizer.zero_grad()
        generator = torch.Generator().manual_seed(self.state.step)
        self.model(torch.randn(8, 4, generator=generator)).square().sum().backward()

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.backward()
            self.optimizer.step()
            self.state.step += 1
            self.state.commit()

    def values(self) -> list[Any]:
        found = [each.clone() for each in self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            found += [each.clone() for each in state.values() if torch.is_tensor(each)]
        return found

    def copied(self) -> int:
        """Returns how many elements of parameters the state keeps copies of."""
        return sum(
            each.numel()
            for handler in self.state._large()
            for each in parameters_in(handler._saved._tree)
        )


def parameters_in(tree: Any) -> list[Any]:
    if torch.is_tensor(tree):
        return [tree] if tree.shape in [(3, 4), (3,)] else []
    children = tree.values() if isinstance(tree, dict) else tree
    if not isinstance(children, (list, tuple)) and not isinstance(tree, dict):
        return []
    return [each for child in children for each in parameters_in(child)]


def same(values: list[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(map(torch.equal, values, others))


BUFFERS = 6  # the elements of BatchNorm1d(3)'s running mean and variance


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_commit_copies_buffers_alone_once_one_has_shown_that_nothing_can_fail(kind: str) -> None:
    training = Training(kind)
    assert training.copied() > BUFFERS
    training.train()
    assert training.copied() == BUFFERS


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_restore_takes_back_what_a_failed_step_has_changed(kind: str) -> None:
    training = Training(kind)
    training.train(3)
    before = training.values()
    training.backward()  # changes the running statistics
    training.state.step = 77
    training.optimizer.param_groups[0]["lr"] = 5.0
    assert not same(training.values(), before)
    training.state.restore()
    assert same(training.values(), before)
    assert (training.state.step, training.optimizer.param_groups[0]["lr"]) == (3, 0.1)
    training.train(3)
    undisturbed = Training(kind)
    undisturbed.train(6)
    assert same(training.values(), undisturbed.values())


@pytest.mark.parametrize("kind", ["sgd", "adam", "fused"])
def test_restore_after_a_step_is_an_error(kind: str) -> None:
    training = Training(kind)
    training.train(2)
    training.backward()
    training.optimizer.step()
    with pytest.raises(RuntimeError, match=r"copies is False\. Use copies=True"):
        training.state.restore()


def test_restore_of_parameters_that_were_written_to_is_an_error() -> None:
    training = Training()
    training.train(2)
    with torch.no_grad():
        training.model[0].weight.zero_()
    with pytest.raises(RuntimeError, match="copies is False"):
        training.state.restore()


def test_a_step_that_fails_in_its_middle_has_begun() -> None:
    training = Training()
    training.train(2)
    training.backward()
    training.optimizer.synchronize()
    training.optimizer.param_groups[0]["momentum"] = "none"
    with pytest.raises(TypeError), training.optimizer.skip_synchronize():
        training.optimizer.step()
    with pytest.raises(RuntimeError, match="copies is False"):
        training.state.restore()


def all_are_copied(training: Training) -> bool:
    return all(handler.has_copy() for handler in training.state._large())


def test_operations_between_step_and_commit_bring_the_copies_back() -> None:
    training = Training()
    training.train(2)
    training.backward()
    training.optimizer.step()
    hvd.allreduce(torch.ones(1), name="loss")
    with pytest.warns(UserWarning, match="1 operations came between") as caught:
        training.state.commit()
    assert caught[0].filename == __file__
    assert all_are_copied(training)
    before = training.values()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.train(2)  # it has said so once, and keeps to it
    assert all_are_copied(training)
    training.backward()
    training.optimizer.step()
    training.state.restore()
    assert not same(training.values(), before)
    undisturbed = Training()
    undisturbed.train(2)
    undisturbed.backward()
    undisturbed.optimizer.step()
    undisturbed.state.commit()
    undisturbed.train(2)
    assert same(training.values(), undisturbed.values())


def test_steps_without_a_commit_bring_the_copies_back() -> None:
    training = Training()
    training.train(2)
    for _ in range(2):
        training.backward()
        training.optimizer.step()
    with pytest.warns(UserWarning, match=r"\d operations came between"):
        training.state.commit()
    assert all_are_copied(training)


def test_parameters_written_to_before_the_step_bring_the_copies_back() -> None:
    training = Training()
    training.train(2)
    with torch.no_grad():
        training.model[0].weight.mul_(0.5)
    training.backward()
    training.optimizer.step()
    with pytest.warns(UserWarning, match="written to before optimizer.step"):
        training.state.commit()
    assert all_are_copied(training)


def test_parameters_written_to_after_the_step_do_not() -> None:
    training = Training()
    training.train(2)
    training.backward()
    training.optimizer.step()
    with torch.no_grad():
        training.model[0].weight.clamp_(-0.1, 0.1)
    training.state.commit()
    assert training.copied() == BUFFERS


def test_an_assigned_optimizer_is_watched_too() -> None:
    training = Training()
    training.train(2)
    torch_s = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.state.optimizer = training.optimizer = hvd.DistributedOptimizer(
        torch_s, training.model.named_parameters()
    )
    training.train()
    training.backward()
    training.optimizer.step()
    with pytest.raises(RuntimeError, match="copies is False"):
        training.state.restore()


def test_in_a_job_that_is_not_elastic_there_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_link, "is_elastic", lambda: False)
    training = Training()
    training.train(2)
    before = training.values()
    training.backward()
    training.optimizer.step()
    training.state.restore()
    assert same(training.values(), before)


def test_arguments_that_cannot_be() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="copies is 3; it must be True or False"):
        hvd.elastic.TorchState(model, copies=3)
    with pytest.raises(ValueError, match="without an optimizer"):
        hvd.elastic.TorchState(model, copies=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), overlap_forward=True
    )
    with pytest.raises(ValueError, match="overlap_forward"):
        hvd.elastic.TorchState(model, optimizer, copies=False)
