"""The classes and functions of perseus._keras as the interface of one Keras has them.

There are two interfaces, of `keras` and of `tf.keras`, which differ in the Keras that they are for
and, by that, in the backend.
"""

from __future__ import annotations

from typing import Any, TypeVar

from perseus._keras.backend import Backend
from perseus.common.elastic import Train
from perseus.common.reduce_ops import Average

__all__ = ["Functions", "bound_class"]

T = TypeVar("T")


def bound_class(
    implementation: type[T], module: str, backend: Backend, base: type = object
) -> type[T]:
    """Returns a subclass that puts an implementation before the class of a Keras.

    Args:
      implementation: a class that expects `_backend` as an attribute; the result has its name.
      module: the name of the module that shows the result.
      backend: of the Keras.
      base: the class of that Keras, such as its Callback.
    """
    bases = (implementation,) if base is object else (implementation, base)
    members = {"__module__": module, "__doc__": implementation.__doc__, "_backend": backend}
    return type(implementation.__name__, bases, members)


class Functions:
    """The functions that the interfaces share, as methods."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def run(self, func: Train) -> Train:
        """Decorates `train(state, ...)`, to restart from the last commit when ranks are lost."""
        return self._backend.run_elastic(func)

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Gives all global variables of a graph the root's values, in Keras's session.

        Raises RuntimeError if there is no graph of TensorFlow; then pass the callback
        BroadcastGlobalVariablesCallback to fit.
        """
        return self._backend.broadcast_global_variables(root_rank)

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """Concatenates the ranks' values along the first dimension, in rank order; gives a tensor.

        The first dimension may differ between the ranks.
        """
        return self._backend.allgather(value, name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """Gives every rank the root's value as a tensor; all must have its shape and type."""
        return self._backend.broadcast(value, root_rank, name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Sums or averages the ranks' values; each rank gets its share of the rows, as a tensor."""
        return self._backend.reducescatter(value, name, op)
