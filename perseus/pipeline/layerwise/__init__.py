"""Layer-wise training as a pipeline: stages that learn from objectives of their own.

    pipeline = LayerWise([RBM(784, 1024), RBM(1024, 1024)], chunk=4, delay=0.05)
    times = pipeline.train(batches, epochs=20)
    pipeline.collect()
    network = pipeline.network(torch.nn.Linear(1024, 10))

A stage trains on a mini-batch and hands the result forward; nothing comes back. So all stages work
at once, each on another part of the data. The rules are those of Ma, Li, Yang and Zhang, "A
pipelined pre-training algorithm for DBNs" (2017), section 4.

What comes in: mini-batches, on the rank of stage 0. What goes out: trained stages, and how long
each worked and waited. Everything runs in the thread that calls train; the engine's threads move
the messages. `stage` is what a stage must do; `rbm` and `local_loss` have stages; `plan` decides
where and when each of them works; `chunks`, `links` and `neighbours` carry results from stage to
stage; `worker` is the loop of one rank, and `layer_wise` the whole.

The names are imported, and PyTorch with them, when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

#: The modules of perseus.pipeline that the names are in.
_HOMES = {
    "RBM": "layerwise.rbm",
    "Autoencoder": "layerwise.local_loss",
    "LayerWise": "layerwise.layer_wise",
    "LocalLoss": "layerwise.local_loss",
    "Stage": "layerwise.stage",
    "StageError": "errors",
    "StageLostError": "layerwise.failures",
    "StageTimes": "layerwise.times",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"perseus.pipeline.{_HOMES[name]}"), name)
