"""A saved copy is brought up to date in place, and shares nothing with what it is a copy of."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perseus.torch.horovod.elastic.saved_copy import SavedCopy  # noqa: E402


def tensors(tree: Any) -> list[Any]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree
    return [each for child in children for each in tensors(child)] if children else []


def memory(saved: SavedCopy) -> list[int]:
    return [each.data_ptr() for each in tensors(saved._tree)]


def test_the_next_update_uses_the_same_memory() -> None:
    tree = {"a": torch.ones(3), "b": [torch.zeros(2, 2), (torch.ones(1),)]}
    saved = SavedCopy()
    saved.update(tree)
    before = memory(saved)
    for each in tensors(tree):
        each.add_(5)
    assert [each.max() for each in tensors(saved.new())] == [1, 0, 1]
    saved.update(tree)
    assert memory(saved) == before
    for ours, wanted in zip(tensors(saved.new()), tensors(tree), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0)


def test_what_is_given_out_is_not_written_to() -> None:
    tree = {"a": torch.ones(3)}
    saved = SavedCopy()
    saved.update(tree)
    given = saved.new()
    tree["a"].fill_(2)
    saved.update(tree)
    assert given["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "other",
    [torch.full((4,), 2.0), torch.full((3,), 2.0, dtype=torch.float64), torch.full((3, 1), 2.0)],
)
def test_a_tensor_of_another_kind_takes_the_place_of_the_last(other: torch.Tensor) -> None:
    saved = SavedCopy()
    saved.update({"a": torch.ones(3)})
    saved.update({"a": other})
    torch.testing.assert_close(saved.new()["a"], other, rtol=0, atol=0)


def test_the_state_of_an_optimizer_grows() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.5, 0.9))
    saved = SavedCopy()
    saved.update(optimizer.state_dict())
    assert saved.new()["state"] == {}
    weights = []
    for _ in range(3):
        saved.update(optimizer.state_dict())
        weights.append(weight.detach().clone())
        weight.grad = torch.full((3,), 0.5)
        optimizer.step()
    # Two steps from the last copy, by an optimizer that keeps what it loads.
    with torch.no_grad():
        weight.copy_(weights[2])
    optimizer.load_state_dict(saved.new())
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.9)
    weight.grad = torch.full((3,), 0.5)
    optimizer.step()
    again = weight.detach().clone()
    with torch.no_grad():
        weight.copy_(weights[2])
    optimizer.load_state_dict(saved.new())
    optimizer.step()
    torch.testing.assert_close(weight.detach(), again, rtol=0, atol=0)


def test_tied_tensors_are_one_in_the_copy_until_they_are_untied() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Linear(2, 2, False), torch.nn.Linear(2, 2, False)
            self.other.weight = self.one.weight

    model = Tied()
    saved = SavedCopy()
    for _ in range(2):
        saved.update(model.state_dict())
        assert len(set(memory(saved))) == 1
    model.other.weight = torch.nn.Parameter(torch.full((2, 2), 9.0))
    for _ in range(2):
        saved.update(model.state_dict())
        for name, wanted in model.state_dict().items():
            torch.testing.assert_close(saved.new()[name], wanted, rtol=0, atol=0)
    model.other.weight = model.one.weight
    saved.update(model.state_dict())
    assert len(set(memory(saved))) == 1


def test_columns_of_one_matrix_are_copied_each() -> None:
    matrix = torch.arange(6.0).view(2, 3)
    tree = {"first": matrix[:, 0], "rows": matrix.t(), "all": matrix, "spread": matrix[:1, :1]}
    tree["spread"] = tree["spread"].expand(2, 2)
    saved = SavedCopy()
    for _ in range(2):
        matrix += 1
        saved.update(tree)
        for name, wanted in tree.items():
            torch.testing.assert_close(saved.new()[name], wanted, rtol=0, atol=0)


def test_versions_of_modules_are_kept() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    saved = SavedCopy()
    saved.update(state)
    copied = saved.new()
    assert type(copied) is OrderedDict
    assert copied._metadata == state._metadata


def test_other_objects_are_copied_whole() -> None:
    class Other:
        def __init__(self) -> None:
            self.numbers = [1]

    other = Other()
    sparse = torch.eye(2).to_sparse()
    leaf = torch.ones(2, requires_grad=True)
    saved = SavedCopy()
    for _ in range(2):
        saved.update({"other": other, "sparse": sparse, "leaf": leaf, "none": None, "lr": 0.1})
    other.numbers.append(2)
    with torch.no_grad():
        leaf.add_(1)
    copied = saved.new()
    assert copied["other"].numbers == [1]
    assert copied["sparse"].to_dense().tolist() == [[1, 0], [0, 1]]
    assert copied["leaf"].tolist() == [1, 1] and copied["leaf"].requires_grad
    assert (copied["none"], copied["lr"]) == (None, 0.1)


def test_a_tree_of_another_form_takes_the_place_of_the_last() -> None:
    saved = SavedCopy()
    for tree in ({"a": [torch.ones(1)]}, {"a": {"b": torch.ones(1)}}, [1, 2], (torch.ones(2),), 3):
        saved.update(tree)
        assert str(saved.new()) == str(tree)
