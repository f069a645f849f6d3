"""Reduces the gradients of a DistributedOptimizer before its own class applies them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perseus._keras.backend import Backend, Options
from perseus.common.local_variables import Reduce

__all__ = ["Allreduce", "Reducer"]

#: From gradients and their variables to reduced gradients, and local ones of this rank.
Allreduce = Callable[[list[Any], list[Any]], Sequence[Any]]

# In place of a graph in which gradients count as reduced: in none, or in all.
_NOWHERE = object()
_EVERYWHERE = object()


class Reducer:
    """Reduces gradients once on their way from the tape to the variables.

    Attributes:
      is_loss_scaled: whether steps are skipped if gradients are not finite. All ranks must then
        decide alike, so if a gradient is not finite on one rank, all ranks get NaN.
      accumulation: adds up gradients; None if each step has one pass.
    """

    def __init__(self, backend: Backend, options: Options) -> None:
        self.options = options
        self.is_loss_scaled = False
        self._backend = backend
        self._reduction = backend.make_reduction(options)
        self.accumulation = backend.make_accumulation(options) if options.passes > 1 else None
        self._reduced_in: object = _NOWHERE

    @property
    def accumulates(self) -> bool:
        return self.accumulation is not None

    def register_local_var(self, variable: Any) -> None:
        if not self._backend.is_variable(variable):
            raise ValueError(
                f"a local variable must be a variable of Keras, not {type(variable).__name__}"
            )
        self._reduction.local_variables.add(variable)

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], allreduce: Allreduce
    ) -> list[Any]:
        """Returns the reduced gradients; those of local variables are this rank's own.

        Args:
          allreduce: the optimizer's method _allreduce, or what a program has put in its place.
        """
        self._backend.refuse_xla(self.options.name)
        return list(allreduce(list(gradients), list(variables)))

    def allreduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Reduce
    ) -> list[Any]:
        """Does what reduce() does, before a program has put anything in its place.

        Args:
          reduce: the optimizer's method _allreduce_grads, likewise.
        """
        if not self.is_loss_scaled:
            return self._reduction(gradients, variables, reduce)
        # A reduced gradient is not finite on all ranks if it was not on one. For local ones, one of
        # those to be reduced tells the other ranks, which may have no local ones.
        gradients = list(gradients)
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        local = [i for i in there if variables[i] in self._reduction.local_variables]
        shared = [i for i in there if i not in local]
        if local and shared:
            # Of the last layer: it is small.
            gradients = self._backend.mark_non_finite(gradients, local, shared[-1])
        reduced = self._reduction(gradients, variables, reduce)
        return reduced if shared else self._agreed(reduced, local)

    def reduce_all(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None, use_generic_names: bool
    ) -> list[Any]:
        """Returns the reduced gradients of variables that are not local."""
        return self._reduction.reduce(gradients, variables, use_generic_names)

    def agree(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns this rank's gradients, with NaN if any rank's gradients are not finite."""
        self._backend.refuse_xla(self.options.name)
        return self._agreed(list(gradients), range(len(gradients)))

    def step(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        allreduce: Allreduce,
        apply: Callable[[list[Any]], object],
        skip: Callable[[], object],
    ) -> None:
        """Applies reduced gradients, or skips the step before the last of several passes.

        Args:
          allreduce: see reduce().
        """
        if self.accumulation is None:
            apply(self.reduce(gradients, variables, allreduce))
            return
        self._backend.refuse_xla(self.options.name)

        def apply_sums(sums: list[Any]) -> None:
            if self.options.average_aggregated_gradients:
                sums = [None if each is None else each / self.options.passes for each in sums]
            apply(self.reduce(sums, variables, allreduce))

        self.accumulation(gradients, variables, apply_sums, skip)

    def reset(self) -> None:
        """Discards what has been added up."""
        self.clear_mark()
        if self.accumulation is not None:
            self.accumulation.reset()

    def mark(self) -> None:
        """Notes that the next gradients in the same graph have been reduced."""
        self._reduced_in = self._backend.current_graph()

    def clear_mark(self) -> None:
        self._reduced_in = _NOWHERE

    def is_marked(self) -> bool:
        if self._reduced_in in (_NOWHERE, _EVERYWHERE):
            return self._reduced_in is _EVERYWHERE
        return self._reduced_in == self._backend.current_graph()

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Within it, gradients count as reduced, also in the branches of a graph."""
        self._reduced_in = _EVERYWHERE
        try:
            yield
        finally:
            self.clear_mark()

    def _agreed(self, gradients: list[Any], which: Sequence[int]) -> list[Any]:
        there = [i for i in which if gradients[i] is not None]
        name, process_set = self.options.name, self.options.process_set
        return self._backend.finite_everywhere(gradients, there, name, process_set)
