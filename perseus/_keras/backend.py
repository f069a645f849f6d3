"""The functions that differ between the frameworks that Keras runs on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy.typing as npt

from perseus.common.compression import Compressor
from perseus.common.elastic import Train
from perseus.common.local_variables import LocalVariables, Reduce
from perseus.common.process_sets import ProcessSet

__all__ = ["Accumulation", "Backend", "Options", "Reduction", "backend_named"]


@dataclass(frozen=True)
class Options:
    """How a DistributedOptimizer reduces gradients; see its arguments."""

    name: str
    device_dense: str
    device_sparse: str
    compression: type[Compressor]
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: int
    passes: int
    average_aggregated_gradients: bool
    groups: int | Sequence[Iterable[Any]] | None
    process_set: ProcessSet
    scale_local_gradients: bool


class Reduction(Protocol):
    """Reduces lists of gradients over the ranks."""

    #: those whose gradients are not reduced
    local_variables: LocalVariables

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Reduce
    ) -> list[Any]:
        """Returns the gradients in their order: local ones scaled, the others from `reduce`."""

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None, use_generic_names: bool
    ) -> list[Any]:
        """Returns the reduced gradients in their order; None for a variable without one.

        Args:
          variables: not local, and the same on all ranks.
          use_generic_names: match gradients by their positions only, not by names of variables.
        """


class Accumulation(Protocol):
    """Adds up the gradients of several passes."""

    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        at_end: Callable[[list[Any]], object],
        otherwise: Callable[[], object],
    ) -> None:
        """Adds gradients. Then calls at_end with the sums in the last pass, otherwise in others."""

    def reset(self) -> None:
        """Discards what has been added up."""


class Backend(Protocol):
    """A module of functions in the adapter of each framework; see _MODULES."""

    #: the module with Horovod's interface for the framework
    horovod: Any

    def keras2_class(self, optimizer: Any) -> type | None:
        """Returns the class to put before that of an optimizer of Keras 2; None if it is none."""

    def make_reduction(self, options: Options) -> Reduction: ...

    def make_accumulation(self, options: Options) -> Accumulation: ...

    def mark_non_finite(self, gradients: list[Any], which: Sequence[int], marked: int) -> list[Any]:
        """Returns this rank's gradients; `marked` holds a NaN if one of `which` is not finite."""

    def finite_everywhere(
        self, gradients: list[Any], which: Sequence[int], name: str, process_set: ProcessSet
    ) -> list[Any]:
        """Returns the gradients; one is NaN if, on any rank, one of `which` is not finite."""

    def current_graph(self) -> object:
        """Returns an object for the graph that is being built at present; None if there is none."""

    def refuse_xla(self, name: str) -> None:
        """Raises RuntimeError if the code being traced will be compiled by XLA."""

    def turn_off_xla(self, model: Any) -> bool:
        """Turns off XLA for a Keras model; returns whether the user had asked for it."""

    def sees_attributes(self, model: Any) -> bool:
        """Returns whether each training step reads the optimizer's attributes again."""

    def is_variable(self, value: Any) -> bool: ...

    def number(self, value: Any) -> float:
        """Returns the value of a variable, a tensor or a number."""

    def values_of(self, variables: Sequence[Any]) -> list[npt.NDArray[Any]]:
        """Returns the values of variables, which may be in their own memory and read-only."""

    def saved_values(self, variables: Sequence[Any], last: Sequence[Any]) -> list[Any]:
        """Returns what `assign` brings the present values back with.

        Args:
          last: what was saved before, whose memory may be used again.
        """

    def assign(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assigns saved values, or copies of arrays."""

    def broadcast_variables(self, variables: Iterable[Any], root_rank: int) -> None:
        """Assigns the root's values to the variables whose type can be sent."""

    def broadcast_global_variables(self, root_rank: int) -> Any: ...

    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: type[Compressor],
    ) -> Any: ...

    def allgather(self, value: Any, name: str | None) -> Any: ...

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any: ...

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any: ...

    def run_elastic(self, func: Train) -> Train: ...


_MODULES = {
    "tensorflow": "perseus.tensorflow.keras_backend",
    "torch": "perseus.torch.keras_backend",
}


def backend_named(name: str) -> Backend:
    """Returns a backend by Keras's name for it; NotImplementedError if there is no adapter."""
    if name not in _MODULES:
        raise NotImplementedError(
            f"Keras runs on {name}, for which Perseus has no adapter; it has one for "
            f"{' and '.join(_MODULES)}: set KERAS_BACKEND"
        )
    return cast(Backend, importlib.import_module(_MODULES[name]))
