"""Training that survives the loss of ranks; see perseus.common.elastic."""

from __future__ import annotations

from perseus.common.elastic import Train, drain, run_fn
from perseus.common.process_sets import carried_over
from perseus.torch.horovod.elastic.sampler import ElasticSampler
from perseus.torch.horovod.elastic.state import TorchState
from perseus.torch.horovod.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "TorchState", "drain", "run"]


def run(func: Train) -> Train:
    """Decorates `train(state, ...)`, which restarts from the last commit when ranks are lost."""
    return run_fn(func, _reset)


def _reset() -> None:
    with carried_over():
        shutdown()
        init()
