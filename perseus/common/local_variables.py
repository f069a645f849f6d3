"""Variables whose gradients stay on their rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["LocalVariables"]

#: From gradients and their variables to the reduced gradients; None stays None.
Reduce = Callable[[list[Any], list[Any]], Sequence[Any]]


class LocalVariables:
    """The variables whose gradients are not reduced. Each rank may have as many as it likes.

    Args:
      key: gives a value that is different for each variable.
    """

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self._key = key
        self._keys: set[Any] = set()

    def add(self, variable: Any) -> None:
        self._keys.add(self._key(variable))

    def __contains__(self, variable: Any) -> bool:
        return bool(self._keys) and self._key(variable) in self._keys

    def reduce_others(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        reduce: Reduce,
        scale: Callable[[Any], Any] | None,
    ) -> list[Any]:
        """Returns the gradients in their order: local ones scaled, the others reduced.

        Args:
          gradients: None for a variable without one, which stays None.
          reduce: gets all variables that are not local, also those without a gradient. Ranks match
            them by their positions among these, which are the same on all ranks.
          scale: None to leave local gradients as they are.
        """
        results = list(gradients)
        shared = [i for i, variable in enumerate(variables) if variable not in self]
        reduced = reduce([results[i] for i in shared], [variables[i] for i in shared])
        for i, gradient in zip(shared, reduced, strict=True):
            results[i] = gradient
        if scale is not None:
            for i in set(range(len(results))).difference(shared):
                results[i] = None if results[i] is None else scale(results[i])
        return results
