"""DistributedOptimizer: any PyTorch optimizer, with gradients reduced over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from perseus.common.gradient_arguments import checked_passes, checked_predivide, given_groups
from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.common.reduce_ops import Adasum, Average, checked_op
from perseus.torch.horovod.compression import Compression, Compressor, checked_compression
from perseus.torch.horovod.distributed import Distributed
from perseus.torch.horovod.distributed_deltas import DistributedDeltas
from perseus.torch.horovod.forward_overlap import UpdatesInForward
from perseus.torch.horovod.parameter_groups import checked_groups
from perseus_core import size


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
) -> torch.optim.Optimizer:
    """The optimizer, with gradients that are reduced over the ranks before each step.

    Each gradient is handed over as backward produces it, and moves while backward goes on; those
    of the parameters that come first move first. The result is an instance of the optimizer's own
    class and shares its param_groups and state; use it in the optimizer's place.

    Args:
      optimizer: computes the updates.
      named_parameters: pairs such as model.named_parameters(); ranks match gradients by name.
        Without them, by the position in the optimizer's groups.
      compression: what a gradient is turned into before it is reduced.
      backward_passes_per_step: backward passes that are added up before gradients are reduced.
      op: Average or Sum (or Min, Max, Product), of gradients; or Adasum, of what the optimizer
        makes of them: each rank steps by itself, and the differences that this makes to the
        parameters are combined by Adasum.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / it after.
      num_groups: deprecated form of an int for `groups`.
      groups: gradients that are reduced together: the number of groups to split the parameters
        into, or lists of parameters; others stay single.
      sparse_as_dense: reduces sparse gradients as dense ones.
      process_set: the ranks that take part; on others the optimizer stays local.
      overlap_forward: step does not wait for the gradients. Each parameter is updated when the next
        forward pass needs it, or whatever else looks at it, with the same numbers as without. For
        optimizers that treat every parameter for itself, as all of torch.optim's but LBFGS do.

    Raises ValueError for arguments that contradict each other.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer is {type(optimizer).__name__}; it takes a torch.optim.Optimizer"
        )
    checked_compression(compression)
    op = checked_op(op)
    factor = checked_predivide(gradient_predivide_factor, op)
    passes = checked_passes(backward_passes_per_step)
    groups = checked_groups(given_groups(num_groups, groups))
    if overlap_forward and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("overlap_forward updates one parameter after the other; LBFGS cannot")
    if isinstance(optimizer, Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    set_id(process_set)

    ours: type = Distributed if op != Adasum or size() == 1 else DistributedDeltas
    if overlap_forward:
        ours = type(ours.__name__, (UpdatesInForward, ours), {})
    cls = type(
        type(optimizer).__name__,
        (ours, type(optimizer)),
        {"__module__": __name__, "__doc__": type(optimizer).__doc__},
    )
    distributed = cls.__new__(cls)
    # Sharing everything keeps momenta, hooks and schedulers, and asks nothing of the constructor.
    # A scheduler leaves a wrapped `step` on the instance, bound to the optimizer as it was.
    distributed.__dict__.update(
        (key, value) for key, value in vars(optimizer).items() if key != "step"
    )
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
