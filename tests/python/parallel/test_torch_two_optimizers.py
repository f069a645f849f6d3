"""Several DistributedOptimizers without names: ranks match them by the order of their making."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import perseus.torch.horovod as hvd  # noqa: E402


@pytest.fixture(autouse=True)
def counts_from_zero() -> None:
    if hvd.is_initialized():
        hvd.barrier()
        hvd.shutdown()
    hvd.init()


def zeros(size: int = 2) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(size))


def distributed(cls, *params: torch.nn.Parameter, **options):
    return hvd.DistributedOptimizer(cls(params, lr=1.0), **options)


def names_of(optimizer) -> list[str]:
    return list(optimizer._parameter_names.values())


def mean() -> float:
    return (hvd.size() + 1) / 2


@pytest.mark.parametrize("options", [{}, {"overlap_forward": True}, {"op": hvd.Adasum}], ids=str)
def test_one_backward_pass_for_two_optimizers(options: dict) -> None:
    """As with Muon for the matrices and AdamW for the rest."""
    matrix, bias = zeros(6), zeros(3)
    one = distributed(torch.optim.SGD, matrix, **options)
    two = distributed(torch.optim.SGD, bias, **options)
    for _ in range(3):
        ((matrix.sum() + bias.sum()) * (hvd.rank() + 1)).backward()
        for optimizer in (one, two):
            optimizer.step()
        for optimizer in (one, two):
            optimizer.apply_updates()
            optimizer.zero_grad()
    each = mean()
    if options.get("op") == hvd.Adasum:
        each = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Adasum).item()
    assert matrix.tolist() == pytest.approx([-3 * each] * 6)
    assert bias.tolist() == pytest.approx([-3 * each] * 3)


def test_a_gan() -> None:
    """The generator's loss goes through the discriminator, whose gradients are thrown away."""
    torch.manual_seed(5)
    generator, discriminator = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    of_generator = distributed(torch.optim.SGD, *generator.parameters())
    of_discriminator = distributed(torch.optim.SGD, *discriminator.parameters())
    noise = torch.randn(4, 2, generator=torch.Generator().manual_seed(hvd.rank()))
    for _ in range(3):
        discriminator(generator(noise).detach()).sum().backward()
        of_discriminator.step()
        of_discriminator.zero_grad()
        discriminator.requires_grad_(False)
        discriminator(generator(noise)).sum().backward()
        of_generator.step()
        of_generator.zero_grad()
        discriminator.requires_grad_(True)
    state = [param.tolist() for param in (*generator.parameters(), *discriminator.parameters())]
    assert hvd.allgather_object(state) == [state] * hvd.size()


def test_the_first_one_has_the_names_that_horovod_gives() -> None:
    first = distributed(torch.optim.SGD, zeros(), zeros())
    second = distributed(torch.optim.SGD, zeros())
    assert names_of(first) == ["allreduce.noname.0.0", "allreduce.noname.0.1"]
    assert names_of(second) == ["allreduce.noname.1.0.0"]


def test_optimizers_that_are_gone_count_on_every_rank() -> None:
    gone = distributed(torch.optim.SGD, zeros())
    del gone
    if hvd.rank() == 0:
        gc.collect()
    param = zeros()
    optimizer = distributed(torch.optim.SGD, param)
    assert names_of(optimizer) == ["allreduce.noname.1.0.0"]
    (param.sum() * (hvd.rank() + 1)).backward()
    optimizer.step()
    assert param.tolist() == [-mean()] * 2


def test_those_with_names_do_not_count() -> None:
    param = zeros()
    distributed(torch.optim.SGD, param, named_parameters=[("a", param)])
    assert names_of(distributed(torch.optim.SGD, zeros())) == ["allreduce.noname.0.0"]


def test_after_shutdown_and_init_both_old_and_new_ones_work() -> None:
    """As hvd.elastic does: what is made before is kept, or made anew, on all ranks alike."""
    matrix, bias = zeros(6), zeros(3)
    for made_anew in (True, True, False):
        if made_anew:
            one, two = (distributed(torch.optim.SGD, param) for param in (matrix, bias))
            assert names_of(two) == ["allreduce.noname.1.0.0"]
        for _ in range(2):
            ((matrix.sum() + bias.sum()) * (hvd.rank() + 1)).backward()
            for optimizer in (one, two):
                optimizer.step()
                optimizer.zero_grad()
        hvd.barrier()
        hvd.shutdown()
        hvd.init()
    assert matrix.tolist() == [-6 * mean()] * 6
    assert bias.tolist() == [-6 * mean()] * 3


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_of_two_for_the_same_parameters_the_later_one_reduces(named: bool) -> None:
    """Something may still refer to an optimizer that was wrapped before, such as a scheduler."""
    param = zeros()
    options = {"named_parameters": [("param", param)]} if named else {}
    old = distributed(torch.optim.SGD, param, **options)
    new = distributed(torch.optim.SGD, param, op=hvd.Sum, **options)
    (param.sum() * (hvd.rank() + 1)).backward()
    new.step()
    assert param.tolist() == [-mean() * hvd.size()] * 2
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="another DistributedOptimizer was made later"):
            old.step()


class TestAnotherOrderOnOneRank:
    """That is an error on every rank, whichever of the two steps first."""

    @pytest.mark.parametrize("how", ["other shapes", "other class", "other number"])
    @pytest.mark.parametrize("first", [0, 1])
    def test_all_ranks_raise(self, two_ranks: None, how: str, first: int) -> None:
        params = [[zeros()], [zeros(3 if how == "other shapes" else 2)]]
        if how == "other number":
            params[1].append(zeros())
        classes = [torch.optim.SGD, torch.optim.Adam if how == "other class" else torch.optim.SGD]
        order = [1, 0] if hvd.rank() == 1 else [0, 1]
        made = {i: distributed(classes[i], *params[i]) for i in order}
        sum(param.sum() for group in params for param in group).backward()
        with pytest.raises(hvd.HorovodInternalError, match="must be made in the same order"):
            made[first].step()

    def test_the_same_number_means_another_one(self, two_ranks: None) -> None:
        """Each rank steps with the first that it has made."""
        params = [zeros(2), zeros(3)]
        order = [1, 0] if hvd.rank() == 1 else [0, 1]
        made = {i: distributed(torch.optim.SGD, params[i]) for i in order}
        sum(param.sum() for param in params).backward()
        with pytest.raises(
            hvd.HorovodInternalError, match=r"'allreduce\.noname\.0\.0: float32\[2\]' is on rank 0"
        ):
            made[order[0]].step()

    def test_an_extra_one_on_one_rank(self, two_ranks: None) -> None:
        if hvd.rank() == 1:
            distributed(torch.optim.SGD, zeros())
        param = zeros()
        optimizer = distributed(torch.optim.SGD, param)
        param.sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match="'optimizer 1: SGD' is on rank 1 only"):
            optimizer.step()
