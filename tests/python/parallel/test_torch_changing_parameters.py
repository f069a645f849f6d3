"""Parameters that are added to a DistributedOptimizer, unfrozen, frozen or removed later."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import perseus.torch.horovod as hvd  # noqa: E402
import perseus_core  # noqa: E402
from perseus.torch.horovod import buckets  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def zeros(count: int = 1, size: int = 2) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(size)) for _ in range(count)]


def frozen(count: int = 1, size: int = 2) -> list[torch.nn.Parameter]:
    return [param.requires_grad_(False) for param in zeros(count, size)]


def mean() -> float:
    """The average of rank + 1, which tests use as gradients."""
    return (hvd.size() + 1) / 2


def adasum() -> float:
    """What Adasum makes of rank + 1."""
    return hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Adasum).item()


def backward(*params: torch.nn.Parameter, factor: float = 1.0) -> None:
    sum((param * (factor * (hvd.rank() + 1))).sum() for param in params).backward()


def assert_all(params, value: float) -> None:
    for param in params:
        assert param.tolist() == pytest.approx([value] * param.numel(), abs=1e-3)


def assert_nothing_is_left(optimizer) -> None:
    assert optimizer._gradients is None or not optimizer._gradients.under_way()


OPTIONS = {
    "none": {},
    "groups": {"groups": 2},
    "num_groups": {"num_groups": 1},
    "listed groups": {"groups": "listed"},
    "fp16": {"compression": hvd.Compression.fp16},
    "passes": {"backward_passes_per_step": 2},
    "overlap_forward": {"overlap_forward": True},
    "Adasum": {"op": hvd.Adasum},
    "Adasum, overlap_forward": {"op": hvd.Adasum, "overlap_forward": True},
    "Sum": {"op": hvd.Sum},
    "sparse_as_dense": {"sparse_as_dense": True},
    "predivide": {"gradient_predivide_factor": 2.0},
    "process_set": {"process_set": hvd.global_process_set},
}


@pytest.mark.filterwarnings("ignore:num_groups")
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_new_ones_are_reduced_from_then_on(options: dict, named: bool) -> None:
    """The case unfrozen_parameters, for some more steps."""
    options = dict(options)
    (trained, late), (unfrozen,), added = zeros(2), frozen(), zeros(2)
    params = [unfrozen, trained, late]
    if named:
        options["named_parameters"] = [(f"p{i}", param) for i, param in enumerate(params)]
    if options.get("groups") == "listed":
        options["groups"] = [[trained, unfrozen, late], added]
    passes = options.get("backward_passes_per_step", 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), **options)

    def step(*params: torch.nn.Parameter) -> None:
        for _ in range(passes):
            backward(*params)
        optimizer.step()
        optimizer.apply_updates()
        optimizer.zero_grad()

    step(trained, late)
    unfrozen.requires_grad_(True)
    optimizer.add_param_group({"params": added})
    for _ in range(3):
        step(trained, late, unfrozen, *added)
    each = passes * mean() * (hvd.size() if options.get("op") == hvd.Sum else 1)
    if options.get("op") == hvd.Adasum:
        each = adasum()
    assert_all([trained, late], -4 * each)
    assert_all([unfrozen, *added], -3 * each)


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_an_embedding_with_sparse_gradients_that_is_added(sparse_as_dense: bool) -> None:
    (trained,) = zeros()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([trained], lr=1.0), sparse_as_dense=sparse_as_dense
    )
    table = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    backward(trained)
    optimizer.step()
    optimizer.add_param_group({"params": table.weight})
    for _ in range(2):
        optimizer.zero_grad()
        backward(trained, table(torch.tensor([1])))
        optimizer.step()
    assert table.weight[1].tolist() == [-2 * mean()] * 2


def test_parameters_that_are_added_after_backward_are_reduced_in_the_same_step() -> None:
    (trained, added), (unfrozen,) = zeros(2), frozen()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([trained, unfrozen], lr=1.0))
    for _ in range(2):
        backward(trained)
        optimizer.step()
        optimizer.zero_grad()
    backward(trained, added)
    unfrozen.grad = torch.full((2,), hvd.rank() + 1.0)
    optimizer.add_param_group({"params": added})
    optimizer.step()
    assert_all([added, unfrozen], -mean())
    optimizer.zero_grad()
    unfrozen.requires_grad_(True)
    backward(trained, added, unfrozen)
    optimizer.step()
    assert_all([added, unfrozen], -2 * mean())


def test_all_of_them_frozen_at_first() -> None:
    params = frozen(3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    optimizer.step()
    for count in (1, 3):
        for param in params[:count]:
            param.requires_grad_(True)
        optimizer.zero_grad()
        backward(*params[:count])
        optimizer.step()
    assert_all(params[:1], -2 * mean())
    assert_all(params[1:], -mean())


def test_new_ones_in_another_order_on_each_rank_are_matched_by_name() -> None:
    named = {f"p{i}": param for i, param in enumerate([*zeros(2), *frozen(4)])}
    order = list(named)
    if hvd.rank() % 2:
        order.reverse()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([named[name] for name in order], lr=1.0),
        named_parameters=[(name, named[name]) for name in order],
    )
    used = ["p0", "p1"]
    for new in ([], ["p5"], ["p2", "p3", "p4"]):
        used += new
        for name in new:
            named[name].requires_grad_(True)
        optimizer.zero_grad()
        in_order = used if hvd.rank() % 3 else list(reversed(used))
        sum((named[name] * (hvd.rank() + 1 + int(name[1]))).sum() for name in in_order).backward()
        optimizer.synchronize()
        for name in used:
            assert named[name].grad.tolist() == [mean() + int(name[1])] * 2
        with optimizer.skip_synchronize():
            optimizer.step()


def test_hundreds_of_small_ones_go_some_at_a_time() -> None:
    (trained,), many = zeros(), frozen(buckets.MANY)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([trained, *many], lr=1.0))
    backward(trained)
    optimizer.step()
    for param in many:
        param.requires_grad_(True)
    for _ in range(2):
        optimizer.zero_grad()
        backward(trained, *many)
        optimizer.step()
    assert_all(many, -2 * mean())
    if hvd.size() > 1:
        assert len(optimizer._gradients.buckets) == 1 + -(-buckets.MANY // buckets.RUN)


@pytest.mark.usefixtures("two_ranks")
def test_names_of_the_user_are_used_for_parameters_that_are_added() -> None:
    head, body, other = zeros(3)
    named = [("head", head), ("body", body)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([head], lr=1.0), named_parameters=named)
    optimizer.add_param_group({"params": [body]})
    optimizer.add_param_group({"params": [other]})
    backward(head, body, other)
    optimizer.step()
    names = [optimizer._parameter_names[param] for param in (head, body, other)]
    assert names == ["head", "body", "param_groups.2.0"]


class TestFrozenAndRemoved:
    def test_a_parameter_that_is_frozen_again(self) -> None:
        first, second = zeros(2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=1.0))
        for is_frozen in (False, True, False, True):
            second.requires_grad_(not is_frozen)
            optimizer.zero_grad()
            backward(first, second)
            optimizer.step()
        assert_all([first], -4 * mean())
        assert_all([second], -2 * mean())

    def test_a_rank_alone_that_freezes_one_does_not_hold_up_the_others(self) -> None:
        first, second = zeros(2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=1.0))
        second.requires_grad_(hvd.rank() == 0)
        backward(first, second)
        optimizer.step()
        assert_all([first], -mean())
        assert_all([second], -1 / hvd.size())

    @pytest.mark.parametrize("overlap_forward", [False, True])
    def test_a_parameter_that_is_replaced(self, overlap_forward: bool) -> None:
        first, second, third = zeros(3)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([first, second], lr=1.0), overlap_forward=overlap_forward
        )
        backward(first, second)
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[0]["params"][1] = third
        for _ in range(2):
            backward(first, third)
            optimizer.step()
            optimizer.zero_grad()
        optimizer.apply_updates()
        assert_all([first], -3 * mean())
        assert_all([second], -mean())
        assert_all([third], -2 * mean())
        if hvd.size() > 1:
            reduced = optimizer._gradients.params()
            assert list(map(id, reduced)) == [id(first), id(third)]

    @pytest.mark.parametrize("which", ["all ranks", "one rank"])
    def test_a_group_that_is_removed_holds_nobody_up(self, which: str) -> None:
        first, second = zeros(2)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([{"params": first}, {"params": second}], lr=1.0)
        )
        backward(first, second)
        optimizer.step()
        if which == "all ranks" or hvd.rank() == 0:
            del optimizer.param_groups[1]
        optimizer.zero_grad()
        backward(first)
        optimizer.step()
        assert_all([first], -2 * mean())


@pytest.mark.usefixtures("two_ranks")
class TestRanksThatDiffer:
    @pytest.mark.parametrize("who", ["first", "last", "all but the first"])
    @pytest.mark.parametrize("how", ["unfreeze", "add", "add after backward"])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"groups": 1},
            {"op": hvd.Adasum},
            {"overlap_forward": True},
            {"op": hvd.Adasum, "overlap_forward": True},
        ],
        ids=str,
    )
    def test_all_ranks_raise_and_may_go_on(self, options: dict, how: str, who: str) -> None:
        (first, second, added), (unfrozen,) = zeros(3), frozen()
        params = [first, unfrozen, second]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=1.0),
            named_parameters=[
                *(("first", first), ("unfrozen", unfrozen), ("second", second), ("added", added))
            ],
            **options,
        )
        backward(first, second)
        optimizer.step()
        optimizer.zero_grad()
        last = hvd.size() - 1
        changed = {"first": [0], "last": [last], "all but the first": list(range(1, last + 1))}[who]
        new = unfrozen if how == "unfreeze" else added

        def change() -> None:
            if how == "unfreeze":
                unfrozen.requires_grad_(True)
            else:
                optimizer.add_param_group({"params": added})

        if hvd.rank() in changed and how != "add after backward":
            change()
        backward(first, second, new) if new.requires_grad else backward(first, second)
        if hvd.rank() in changed and how == "add after backward":
            change()
        name = "unfrozen" if how == "unfreeze" else "added"
        ranks = ", ".join(map(str, changed))
        with pytest.raises(hvd.HorovodInternalError, match=f"'{name}' is on rank {ranks} only"):
            optimizer.step()
            optimizer.apply_updates()
        assert_nothing_is_left(optimizer)
        if hvd.rank() not in changed:
            change()
        optimizer.zero_grad()
        before = [param.detach().clone() for param in (first, new)]
        backward(first, second, new)
        optimizer.step()
        optimizer.apply_updates()
        expected = adasum() if options.get("op") == hvd.Adasum else mean()
        for param, old in zip((first, new), before, strict=True):
            assert (old - param).tolist() == pytest.approx([expected] * 2)

    def test_others_than_on_this_rank_are_named(self) -> None:
        params = [*zeros(), *frozen(hvd.size())]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=1.0),
            named_parameters=[(f"p{i}", param) for i, param in enumerate(params)],
        )
        backward(params[0])
        optimizer.step()
        optimizer.zero_grad()
        params[1 + hvd.rank()].requires_grad_(True)
        backward(params[0], params[1 + hvd.rank()])
        with pytest.raises(hvd.HorovodInternalError) as raised:
            optimizer.step()
        for rank in range(hvd.size()):
            assert f"'p{1 + rank}' is on rank {rank} only" in str(raised.value)
        assert len(set(hvd.allgather_object(str(raised.value)))) == 1

    def test_frozen_on_one_rank_from_the_start(self) -> None:
        params = zeros(3)
        params[1].requires_grad_(hvd.rank() != 0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
        backward(*params)
        with pytest.raises(
            hvd.HorovodInternalError, match=r"noname\.[\d.]*0\.1: float32\[2\]' is on"
        ):
            optimizer.step()
        hvd.shutdown()
        hvd.init()

    def test_a_rank_whose_data_has_ended_has_joined(self) -> None:
        (trained,), (unfrozen,) = zeros(), frozen()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([trained, unfrozen], lr=1.0))
        backward(trained)
        optimizer.step()
        optimizer.zero_grad()
        if hvd.rank() != 0:
            unfrozen.requires_grad_(True)
            backward(trained, unfrozen)
            optimizer.step()
            others = sum(range(2, hvd.size() + 1)) / hvd.size()
            assert_all([unfrozen], -others)
        hvd.join()


@pytest.mark.usefixtures("two_ranks")
def test_a_step_has_one_small_operation_more() -> None:
    params = zeros(5)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    for _ in range(2):
        before = perseus_core.counters()["operations_submitted"]
        backward(*params)
        optimizer.step()
        optimizer.zero_grad()
        assert perseus_core.counters()["operations_submitted"] - before == len(params) + 1


def test_in_a_process_set(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.barrier()
    hvd.shutdown()
    monkeypatch.setenv("PERSEUS_DYNAMIC_PROCESS_SETS", "1")
    hvd.init()
    members = list(range(max(1, hvd.size() - 1)))
    some = hvd.add_process_set(members) if hvd.size() > 1 else hvd.global_process_set
    (trained, added), (unfrozen,) = zeros(2), frozen()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([trained, unfrozen], lr=1.0), process_set=some
    )
    backward(trained)
    optimizer.step()
    optimizer.zero_grad()
    unfrozen.requires_grad_(True)
    optimizer.add_param_group({"params": added})
    backward(trained, unfrozen, added)
    optimizer.step()
    expected = (len(members) + 1) / 2 if hvd.rank() in members else hvd.rank() + 1
    assert_all([unfrozen, added], -expected)
    hvd.barrier()
    hvd.shutdown()
