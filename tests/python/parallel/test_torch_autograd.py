"""Gradients of the collectives, as Horovod defines them, wherever the tensors are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import perseus.torch.horovod as hvd  # noqa: E402

pytestmark = pytest.mark.usefixtures("horovod")


def leaf(device, *shape: int) -> torch.Tensor:
    return torch.full(shape, hvd.rank() + 1.0, device=device, requires_grad=True)


@pytest.mark.parametrize("op, factor", [(hvd.Sum, "size"), (hvd.Average, 1)])
def test_allreduce(op, factor, device):
    tensor = leaf(device, 3, 2)
    hvd.allreduce(tensor, op=op).sum().backward()
    expected = hvd.size() if factor == "size" else 1
    assert torch.equal(tensor.grad, torch.full((3, 2), float(expected), device=device))


def test_what_needs_no_gradient_gets_none(device):
    assert not hvd.allreduce(torch.ones(2, device=device), op=hvd.Sum).requires_grad
    with torch.no_grad():
        assert not hvd.allreduce(leaf(device, 2), op=hvd.Sum).requires_grad


@pytest.mark.filterwarnings("ignore:.torch.jit")  # PyTorch's own, at the first of them
def test_a_derivative_that_is_not_known_is_not_taken_for_zero(device):
    """Forward-mode derivatives and transforms, which Horovod's collectives do not have either."""
    ones = torch.ones(2, device=device)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(ones, ones)
        with pytest.raises((RuntimeError, NotImplementedError)):
            hvd.allreduce(dual, op=hvd.Sum)
    with pytest.raises(RuntimeError):
        torch.func.vmap(lambda row: hvd.allreduce(row, op=hvd.Sum))(torch.ones(2, 2, device=device))
    assert hvd.allreduce(ones, op=hvd.Sum).tolist() == [hvd.size()] * 2


def test_allreduce_scales_the_gradient_too(device):
    tensor = leaf(device, 3)
    hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0).sum().backward()
    assert tensor.grad.tolist() == [6.0 * hvd.size()] * 3


def test_grouped_allreduce(device):
    tensors = [leaf(device, 3), leaf(device, 2, 2)]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum)
    (results[0].sum() + 2 * results[1].sum()).backward()
    assert tensors[0].grad.tolist() == [float(hvd.size())] * 3
    assert tensors[1].grad.tolist() == [[2.0 * hvd.size()] * 2] * 2


def test_allgather_gives_back_the_own_rows_of_the_mean_gradient(device):
    size, rank = hvd.size(), hvd.rank()
    tensor = leaf(device, rank + 1, 2)
    weights = torch.arange(size * (size + 1) / 2, device=device).unsqueeze(1) * (rank + 1)
    (hvd.allgather(tensor) * weights).sum().backward()
    start = rank * (rank + 1) // 2
    mean = torch.arange(start, start + rank + 1.0, device=device) * (size + 1) / 2
    torch.testing.assert_close(tensor.grad, mean.unsqueeze(1).expand(-1, 2))


def test_grouped_allgather(device):
    tensors = [leaf(device, 2), leaf(device, hvd.rank() + 1)]
    first, second = hvd.grouped_allgather(tensors)
    (first.sum() + 3 * second.sum()).backward()
    assert tensors[0].grad.tolist() == [1.0] * 2
    assert tensors[1].grad.tolist() == [3.0] * (hvd.rank() + 1)


def test_broadcast_gives_the_gradient_to_the_root(device):
    root = hvd.size() - 1
    tensor = leaf(device, 3)
    hvd.broadcast(tensor, root).sum().backward()
    assert tensor.grad.tolist() == [1.0 if hvd.rank() == root else 0.0] * 3


def test_alltoall_sends_the_gradient_back(device):
    size, rank = hvd.size(), hvd.rank()
    tensor = leaf(device, 2 * size)
    output, received = hvd.alltoall(tensor, splits=[2] * size)
    assert not received.requires_grad
    (output * (rank + 1)).sum().backward()
    assert tensor.grad.tolist() == [to + 1.0 for to in range(size) for _ in range(2)]


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_reducescatter(op, device):
    size, rank = hvd.size(), hvd.rank()
    tensor = leaf(device, size, 2)
    (hvd.reducescatter(tensor, op=op) * (rank + 1)).sum().backward()
    scale = size if op == hvd.Sum else 1
    assert tensor.grad[:, 0].tolist() == [scale * (to + 1.0) for to in range(size)]


def test_grouped_reducescatter(device):
    tensors = [leaf(device, hvd.size()), leaf(device, 2 * hvd.size())]
    first, second = hvd.grouped_reducescatter(tensors, op=hvd.Average)
    (first.sum() + 2 * second.sum()).backward()
    assert tensors[0].grad.tolist() == [1.0] * hvd.size()
    assert tensors[1].grad.tolist() == [2.0] * (2 * hvd.size())
