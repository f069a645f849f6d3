"""LocalGradientAggregationHelper under Horovod's name for eager execution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.tensorflow.horovod.gradient_aggregation import LocalGradientAggregationHelper

__all__ = ["LocalGradientAggregationHelperEager"]


class LocalGradientAggregationHelperEager(LocalGradientAggregationHelper):
    """A LocalGradientAggregationHelper with the arguments of this name in Horovod."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            rank=0,
            optimizer_type=None,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
