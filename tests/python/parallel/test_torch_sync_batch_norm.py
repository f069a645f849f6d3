"""SyncBatchNorm on the ranks' batches against BatchNorm on all of them in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import perseus.torch.horovod as hvd

LAYERS = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
LAYERS[5] = torch.nn.BatchNorm3d
CHANNELS = 3


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    hvd.init()
    yield


FAR_FROM_0 = (100.0, -5.0, 0.0)


def batches(
    device: torch.device, dims: int, means: tuple[float, ...] = FAR_FROM_0
) -> list[torch.Tensor]:
    """Returns each rank's input; their sizes differ. `means`: of the channels."""
    generator = torch.Generator().manual_seed(dims)
    shape = [4, 2, 5][: dims - 2]
    return [
        torch.randn([2 + 3 * rank, CHANNELS, *shape], generator=generator, dtype=torch.float64)
        .add_(torch.tensor(means).view(1, -1, *[1] * len(shape)))
        .to(device)
        for rank in range(hvd.size())
    ]


def weights(layer: torch.nn.Module) -> None:
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([0.5, -2.0, 3.0]))
            layer.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))


@pytest.mark.parametrize("dims", [2, 3, 4, 5])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_equals_batch_norm_of_one_process(
    dims: int, affine: bool, momentum: float | None, device: torch.device
) -> None:
    parts = batches(device, dims)
    sync = hvd.SyncBatchNorm(CHANNELS, momentum=momentum, affine=affine).double().to(device)
    reference = LAYERS[dims](CHANNELS, momentum=momentum, affine=affine).double().to(device)
    weights(sync)
    weights(reference)
    own = parts[hvd.rank()].clone().requires_grad_()
    everything = torch.cat(parts).requires_grad_()
    for _ in range(3):
        own.grad = everything.grad = None
        output = sync(own)
        expected = reference(everything)
        begin = sum(len(part) for part in parts[: hvd.rank()])
        mine = slice(begin, begin + len(own))
        torch.testing.assert_close(output, expected[mine], rtol=1e-10, atol=1e-10)
        # A loss that depends on every element differently.
        factors = torch.arange(everything.numel(), device=device).double().view_as(everything).cos()
        (output * factors[mine]).sum().backward()
        (expected * factors).sum().backward()
        torch.testing.assert_close(own.grad, everything.grad[mine], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(sync.running_mean, reference.running_mean)
        torch.testing.assert_close(sync.running_var, reference.running_var)
    assert sync.num_batches_tracked == reference.num_batches_tracked
    if affine:
        for name in ("weight", "bias"):
            total = hvd.allreduce(getattr(sync, name).grad, op=hvd.Sum, name=name)
            torch.testing.assert_close(total, getattr(reference, name).grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types_are_summed_wide(dtype: torch.dtype, device: torch.device) -> None:
    parts = batches(device, 4, (1.0, 0.0, -1.0))
    narrow = [part.to(dtype) for part in parts]
    sync = hvd.SyncBatchNorm(CHANNELS).to(device)
    own = narrow[hvd.rank()].clone().requires_grad_()
    output = sync(own)
    assert output.dtype == dtype
    everything = torch.cat(narrow).double()
    expected = torch.nn.BatchNorm2d(CHANNELS).double().to(device)(everything)
    begin = sum(len(part) for part in parts[: hvd.rank()])
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        output.double(), expected[begin : begin + len(own)], rtol=tolerance, atol=tolerance
    )
    output.float().sum().backward()
    assert own.grad.dtype == dtype


def test_a_rank_without_rows_takes_part() -> None:
    if hvd.size() == 1:
        pytest.skip("somebody must have rows")
    rows = torch.randn(6, CHANNELS, dtype=torch.float64, generator=torch.manual_seed(3))
    sync = hvd.SyncBatchNorm(CHANNELS).double()
    own = (rows if hvd.rank() == 0 else rows[:0]).clone().requires_grad_()
    output = sync(own)
    expected = torch.nn.BatchNorm1d(CHANNELS).double()(rows)
    torch.testing.assert_close(output, expected if hvd.rank() == 0 else expected[:0])
    output.sum().backward()
    assert own.grad.shape == own.shape


def test_evaluation_is_local() -> None:
    sync = hvd.SyncBatchNorm(CHANNELS).eval()
    if hvd.rank() == 0:  # nobody else is needed
        x = torch.randn(4, CHANNELS)
        torch.testing.assert_close(sync(x), torch.nn.BatchNorm1d(CHANNELS).eval()(x))


def test_errors_are_the_same_on_every_rank() -> None:
    with pytest.raises(ValueError, match="at least 2D"):
        hvd.SyncBatchNorm(CHANNELS)(torch.ones(CHANNELS))
    if hvd.size() > 1:
        x = torch.ones(1 if hvd.rank() == 0 else 0, CHANNELS)
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            hvd.SyncBatchNorm(CHANNELS)(x)
        for wrong in (torch.ones(CHANNELS), torch.ones(4, CHANNELS + 1)):
            x = wrong if hvd.rank() == 0 else torch.ones(4, CHANNELS)
            expected = ValueError if hvd.rank() == 0 else hvd.HorovodInternalError
            with pytest.raises(expected, match="expected"):
                hvd.SyncBatchNorm(CHANNELS)(x)


def test_state_goes_to_and_from_batch_norm() -> None:
    sync = hvd.SyncBatchNorm(CHANNELS)
    plain = torch.nn.BatchNorm2d(CHANNELS)
    plain(torch.randn(2, CHANNELS, 4, 4, generator=torch.manual_seed(0)))
    sync.load_state_dict(plain.state_dict())
    torch.testing.assert_close(sync.running_var, plain.running_var)
