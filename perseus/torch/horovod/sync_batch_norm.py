"""Batch normalization with the statistics of all ranks' batches together."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from perseus.common.reduce_ops import Sum
from perseus.torch.horovod.allgather import allgather
from perseus.torch.horovod.allreduce import allreduce_
from perseus.torch.horovod.eager import eager
from perseus_core import WORLD, OperationKind, refusals, size

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """A BatchNorm that uses mean and variance over all ranks' batches while training.

    It replaces BatchNorm1d, 2d and 3d: inputs are (N, C) or (N, C, ...), and N may differ between
    ranks. Every rank must run the layer equally often. Gradients of weight and bias are local;
    DistributedOptimizer averages them.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._forward_of_all(input) if self.training else super().forward(input)

    @eager
    def _forward_of_all(self, input: torch.Tensor) -> torch.Tensor:
        if size() == 1:
            return super().forward(input)
        with refusals.refusing(OperationKind.ALLGATHER, "allgather", None, WORLD):
            self._check_input_dim(input)
            if input.shape[1] != self.num_features:
                raise ValueError(
                    f"expected {self.num_features} channels (got input of {list(input.shape)})"
                )
        output, mean, variance = _SyncBatchNorm.apply(input, self.weight, self.bias, self.eps)
        self._track(mean, variance)
        return output

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        factor = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if factor is None:  # the average over all batches so far
                factor = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)


class _SyncBatchNorm(torch.autograd.Function):
    """Normalizes (N, C, ...); also returns the mean and the unbiased variance.

    The ranks' means and sums of squares are combined as by Chan, Golub and LeVeque (1979), which
    avoids cancellation. The gradient is that of Ioffe and Szegedy (2015).
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = input.to(_wide(input))
        channels = x.shape[1]
        dims = _all_but_channels(x)
        count = x.numel() // max(channels, 1)
        mean = x.mean(dims) if count else x.new_zeros(channels)
        squares = (x - _spread(mean, x)).square_().sum(dims)

        own = torch.cat((mean.double(), squares.double(), mean.new_tensor([count]).double()))
        ranks = allgather(own.unsqueeze(0))
        means, all_squares, counts = ranks.split((channels, channels, 1), dim=1)
        total = int(counts.sum())
        if total < 2:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input of "
                f"{list(input.shape)} on this rank and {total} in all"
            )
        joint_mean = (means * counts).sum(0) / total
        joint_squares = (all_squares + counts * (means - joint_mean).square_()).sum(0)
        inverse_std = torch.rsqrt(joint_squares / total + eps).to(x.dtype)
        mean = joint_mean.to(x.dtype)

        output = (x - _spread(mean, x)).mul_(_spread(inverse_std, x))
        if weight is not None:
            output.mul_(_spread(weight.to(x.dtype), x))
        if bias is not None:
            output.add_(_spread(bias.to(x.dtype), x))
        ctx.save_for_backward(input, weight, mean, inverse_std)
        ctx.total = total
        variance = joint_squares / (total - 1)
        ctx.mark_non_differentiable(mean, variance)
        return output.to(input.dtype), mean, variance

    @staticmethod
    def backward(
        ctx: Any, grad_output: torch.Tensor, *_: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, inverse_std = ctx.saved_tensors
        x = input.to(mean.dtype)
        grad = grad_output.to(x.dtype)
        dims = _all_but_channels(x)
        centred = x - _spread(mean, x)
        grad_sum = grad.sum(dims)
        grad_dot = (grad * centred).sum(dims)

        grad_input = grad_weight = grad_bias = None
        if weight is not None and ctx.needs_input_grad[1]:
            grad_weight = (grad_dot * inverse_std).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_sum.to(grad_output.dtype if weight is None else weight.dtype)
        if ctx.needs_input_grad[0]:
            sums = allreduce_(torch.cat((grad_sum, grad_dot)), op=Sum)
            mean_grad, mean_dot = (sums / ctx.total).chunk(2)
            grad_input = grad - _spread(mean_grad, x)
            grad_input.sub_(centred.mul_(_spread(inverse_std.square() * mean_dot, x)))
            factor = inverse_std if weight is None else inverse_std * weight.to(x.dtype)
            grad_input = grad_input.mul_(_spread(factor, x)).to(input.dtype)
        return grad_input, grad_weight, grad_bias, None


def _wide(tensor: torch.Tensor) -> torch.dtype:
    """Returns the type to compute in: 16-bit floats have too few digits for sums."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _all_but_channels(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _spread(of_channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Reshapes a value for each channel so that it broadcasts over x."""
    return of_channels.view(1, -1, *(1,) * (x.dim() - 2))
