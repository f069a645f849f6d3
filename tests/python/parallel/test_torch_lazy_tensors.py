"""Tensors whose memory is not what they hold: views that are negated or conjugated by a bit alone,
and zeros without memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch_groups import group, reduce_scatter_single

import perseus.torch.horovod as hvd

__all__ = ["group"]  # which every test uses

Numbers = list[float]


def negated(*numbers: float) -> torch.Tensor:
    """These numbers, as a view of memory that holds them with the other sign."""
    view = torch.tensor([complex(0, -number) for number in numbers]).conj().imag
    assert view.is_neg() and view.tolist() == list(numbers)
    return view


def zeros() -> torch.Tensor:
    return torch._efficientzerotensor(3)


def of_ranks(number: Callable[[int], float]) -> Numbers:
    return [number(rank) for rank in range(hvd.size())]


def mine() -> torch.Tensor:
    return negated(hvd.rank() + 1.0, -2.0)


def summed() -> Numbers:
    return [hvd.size() * (hvd.size() + 1) / 2, -2.0 * hvd.size()]


class TestHorovod:
    def test_results_of_their_own(self) -> None:
        assert hvd.allreduce(mine(), op=hvd.Sum).tolist() == summed()
        assert hvd.grouped_allreduce([mine(), mine()], op=hvd.Sum)[1].tolist() == summed()
        assert hvd.broadcast(mine(), hvd.size() - 1).tolist() == [float(hvd.size()), -2.0]
        gathered = [value for rank in range(hvd.size()) for value in (rank + 1.0, -2.0)]
        assert hvd.allgather(mine()).tolist() == gathered
        one_each = negated(*(hvd.rank() + 1.0 for _ in range(hvd.size())))
        assert hvd.alltoall(one_each).tolist() == of_ranks(lambda rank: rank + 1.0)
        scattered = hvd.reducescatter(one_each, op=hvd.Sum)
        assert scattered.tolist() == summed()[:1]

    def test_results_in_place_keep_the_bit(self) -> None:
        tensor, other, third = mine(), mine(), mine()
        hvd.allreduce_(tensor, op=hvd.Sum)
        hvd.grouped_allreduce_([other], op=hvd.Sum)
        hvd.broadcast_(third, 0)
        assert [tensor.tolist(), other.tolist()] == [summed()] * 2
        assert third.tolist() == [1.0, -2.0]
        assert tensor.is_neg() and other.is_neg() and third.is_neg()

    def test_with_compression(self) -> None:
        result = hvd.allreduce(mine(), op=hvd.Sum, compression=hvd.Compression.fp16)
        assert result.tolist() == summed()

    def test_zeros_without_memory(self) -> None:
        assert hvd.allreduce(zeros()).tolist() == [0.0] * 3
        assert hvd.allgather(zeros()).tolist() == [0.0] * 3 * hvd.size()
        with pytest.raises(ValueError, match="keeps no memory for"):
            hvd.allreduce_(zeros())

    @pytest.mark.parametrize("groups", [None, 1])
    def test_gradients(self, groups: int | None) -> None:
        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0),
            named_parameters=[("p", parameter)],
            op=hvd.Sum,
            **({} if groups is None else {"groups": groups}),
        )
        parameter.grad = None

        class Negated(torch.autograd.Function):
            @staticmethod
            def forward(ctx, values):
                return values.sum()

            @staticmethod
            def backward(ctx, _):
                return mine()

        Negated.apply(parameter).backward()
        optimizer.step()
        assert parameter.tolist() == [-value for value in summed()]


class TestProcessGroup:
    def test_reductions(self) -> None:
        tensor = mine()
        dist.all_reduce(tensor)
        assert tensor.tolist() == summed() and tensor.is_neg()
        output = torch.zeros(1)
        reduce_scatter_single(output, negated(*([hvd.rank() + 1.0] * hvd.size())))
        assert output.tolist() == summed()[:1]

    def test_movements(self) -> None:
        tensor = mine()
        dist.broadcast(tensor, 0)
        assert tensor.tolist() == [1.0, -2.0]
        parts = [torch.zeros(2) for _ in range(hvd.size())]
        dist.all_gather(parts, mine())
        assert [part.tolist() for part in parts] == [[r + 1.0, -2.0] for r in range(hvd.size())]
        outputs = [torch.zeros(1) for _ in range(hvd.size())]
        dist.all_to_all(outputs, [negated(hvd.rank() + 1.0) for _ in range(hvd.size())])
        assert [output.item() for output in outputs] == of_ranks(lambda rank: rank + 1.0)
