"""DistributedOptimizer, which is any PyTorch optimizer with gradients reduced over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from perseus.common.gradient_arguments import checked_passes, checked_predivide, given_groups
from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Adasum, Average, checked_op
from perseus.torch.horovod.compression import Compression, Compressor, checked_compression
from perseus.torch.horovod.distributed import Distributed
from perseus.torch.horovod.distributed_deltas import DistributedDeltas
from perseus.torch.horovod.forward_overlap import UpdatesInForward
from perseus.torch.horovod.parameter_groups import checked_groups
from perseus_core import driver_link, size


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    overlap_forward: bool = False,
) -> Distributed:
    """Returns the optimizer with gradients that are reduced over the ranks before each step.

    Each gradient is submitted when backward has produced it, and reduced while backward continues;
    gradients of the first parameters go first. The result is an instance of the optimizer's own
    class and shares its param_groups and state; use it in place of the optimizer. If it is dropped
    before it has taken a step, the next gradient of one of its parameters gives a UserWarning.

    Args:
      optimizer: computes the updates.
      named_parameters: pairs such as model.named_parameters(); ranks match gradients by name.
        If it is None, ranks match gradients by their position in the optimizer's groups.
      compression: converts a gradient before it is reduced.
      backward_passes_per_step: how many backward passes are added up before gradients are reduced.
      op: Average or Sum (or Min, Max, Product) of gradients; or Adasum. With Adasum each rank takes
        a step by itself, and the changes of the parameters are combined.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / gradient_predivide_factor after.
      num_groups: deprecated; pass the number as `groups` instead.
      groups: gradients to reduce together: the number of groups to split the parameters into, or
        lists of parameters; others are reduced one by one.
      sparse_as_dense: reduce sparse gradients as dense ones.
      process_set: the ranks that take part; on other ranks, each steps with its own gradients.
      overlap_forward: step does not wait for the gradients. Each parameter is updated when the next
        forward pass, or other code, uses it. The results are the same. This needs an optimizer that
        updates each parameter independently, as all of torch.optim do except LBFGS.

    Raises TypeError for an argument of the wrong type, and ValueError for one that is out of range
    or contradicts another.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer is {type(optimizer).__name__}; it must be a torch.optim.Optimizer"
        )
    checked_compression(compression)
    op = checked_op(op)
    factor = checked_predivide(gradient_predivide_factor, op)
    passes = checked_passes(backward_passes_per_step)
    groups = checked_groups(given_groups(num_groups, groups))
    if overlap_forward and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS updates all parameters together; do not use overlap_forward")
    if isinstance(optimizer, Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    set_id(process_set)

    is_alone = size() == 1 and not driver_link.is_elastic()
    ours: type = Distributed if op != Adasum or is_alone else DistributedDeltas
    if overlap_forward:
        ours = type(ours.__name__, (UpdatesInForward, ours), {})
    cls: Any = type(
        type(optimizer).__name__,
        (ours, type(optimizer)),
        {"__module__": __name__, "__doc__": type(optimizer).__doc__},
    )
    distributed: Distributed = cls.__new__(cls)
    # Sharing all attributes keeps momenta, hooks and schedulers, and needs no constructor call.
    # Except `step`: a scheduler stores a wrapper there that is bound to the original optimizer.
    distributed.__dict__.update(
        (key, value) for key, value in vars(optimizer).items() if key != "step"
    )
    distributed._original = optimizer
    distributed._distribute(
        named_parameters,
        compression,
        passes,
        op,
        factor,
        groups,
        sparse_as_dense,
        process_set,
    )
    return distributed
