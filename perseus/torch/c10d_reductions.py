"""The reductions of torch.distributed in terms of the engine's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from perseus_core import ReduceOp

__all__ = ["Reduction", "reduction_of"]

_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVERAGE,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
    dist.ReduceOp.BAND: ReduceOp.BITWISE_AND,
    dist.ReduceOp.BOR: ReduceOp.BITWISE_OR,
    dist.ReduceOp.BXOR: ReduceOp.BITWISE_XOR,
    dist.ReduceOp.PREMUL_SUM: ReduceOp.SUM,
}
_ON_BITS = (ReduceOp.BITWISE_AND, ReduceOp.BITWISE_OR, ReduceOp.BITWISE_XOR)

# Unsigned integers that the engine does not know, and signed ones that have the same bits after
# these reductions.
_SIGNED = {
    getattr(torch, name): signed
    for name, signed in (("uint32", torch.int32), ("uint64", torch.int64))
    if hasattr(torch, name)  # from torch 2.3 on
}
_OF_ANY_SIGN = (ReduceOp.SUM, ReduceOp.PRODUCT, *_ON_BITS)


class Reduction(NamedTuple):
    """A reduction by the engine, and what PREMUL_SUM multiplies each rank's tensor by before."""

    op: ReduceOp
    prescale: float = 1.0  #: by the engine; the same on all ranks
    factor: torch.Tensor | None = None  #: by this rank

    def input(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns what this rank contributes: the row-major buffer itself, or a new one."""
        if self.factor is None:
            return buffer
        return buffer * self.factor.to(device=buffer.device, dtype=buffer.dtype).reshape(())

    def known(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns the buffer's memory as a type of which the engine computes the same result.

        Raises what Gloo does if there is none: RuntimeError, or ValueError for complex numbers.
        """
        if buffer.is_complex():
            if self.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
                raise ValueError(f"complex numbers cannot be reduced by {self.op.name.lower()}")
            return torch.view_as_real(buffer)
        if self.op in _ON_BITS and buffer.is_floating_point():
            raise RuntimeError(
                f"{buffer.dtype} cannot be reduced by {self.op.name.lower()}; it takes integers "
                "and bool"
            )
        signed = _SIGNED.get(buffer.dtype)
        if signed is None:
            return buffer
        if self.op not in _OF_ANY_SIGN or self.prescale != 1.0:
            raise RuntimeError(
                f"{buffer.dtype} cannot be reduced by {self.op.name.lower()}; it can by a sum, a "
                "product and operations on bits"
            )
        return buffer.view(signed)


# A list, as ReduceOp cannot be hashed as what it equals. None: it has a factor.
_REDUCTIONS = [
    (op, None if op == dist.ReduceOp.PREMUL_SUM else Reduction(ours)) for op, ours in _OPS.items()
]


def reduction_of(options: Any) -> Reduction:
    """Returns the reduction that a call's options ask for; ValueError if there is none."""
    theirs = dist.ReduceOp.SUM if options is None else options.reduceOp
    for op, reduction in _REDUCTIONS:
        if theirs == op:
            return _premultiplied(theirs) if reduction is None else reduction
    kinds = dist.ReduceOp.RedOpType.__members__
    asked = next((name for name, kind in kinds.items() if theirs == kind), str(theirs))
    served = ", ".join(name for name, kind in kinds.items() if kind in _OPS)
    raise ValueError(f"ReduceOp.{asked} is not supported; it takes one of {served}")


def _premultiplied(theirs: Any) -> Reduction:
    _, factor = theirs.__getstate__()
    if not isinstance(factor, torch.Tensor):
        return Reduction(ReduceOp.SUM, prescale=float(factor))
    if factor.numel() != 1:
        raise ValueError(
            f"the factor of PREMUL_SUM has {factor.numel()} elements; it must have one"
        )
    return Reduction(ReduceOp.SUM, factor=factor)
