"""The base of all distributed optimizers of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perseus._keras.backend import Backend, Options
from perseus._keras.reducer import Reducer

__all__ = ["Distributed", "reducers_of"]

_REDUCER = "_perseus_reducer"

if TYPE_CHECKING:
    # What `of` makes derives from the class of an optimizer, too.
    from keras.optimizers import Optimizer as _Optimizer
else:
    _Optimizer = object


class Distributed(_Optimizer):
    """Comes before the optimizer's own class.

    The classes that of() makes hold the options of the reduction, so that their from_config makes a
    distributed optimizer as well.
    """

    _perseus_backend: Backend
    _perseus_options: Options

    @classmethod
    def of(cls, optimizer: Any, backend: Backend, options: Options) -> Any:
        own: Any = type(optimizer)
        members = {
            "__module__": own.__module__,
            "__doc__": own.__doc__,
            # Keras uses it to save: the file must name the optimizer's own class.
            "__class__": property(lambda self: own),
            "_perseus_backend": backend,
            "_perseus_options": options,
            "process_set": options.process_set,
            "scale_local_gradients": options.scale_local_gradients,
            "backward_passes_per_step": options.passes,
            "average_aggregated_gradients": options.average_aggregated_gradients,
        }
        made = type(own)(own.__name__, (cls, own), members)
        distributed = made.__new__(made)
        # This keeps slots, counters and what the user has set, and needs no constructor call.
        distributed.__dict__.update(vars(optimizer))
        distributed._reducer  # noqa: B018 (checks the options)
        cls._prepare(own)
        return distributed

    @classmethod
    def _prepare(cls, own: type) -> None:
        """Called when such an optimizer has been made; subclasses may override it."""

    @property
    def _reducer(self) -> Reducer:
        if _REDUCER not in self.__dict__:
            reducer = Reducer(self._perseus_backend, self._perseus_options)
            reducer.is_loss_scaled = _scales_loss(self)
            self.__dict__[_REDUCER] = reducer
        found: Reducer = self.__dict__[_REDUCER]
        return found

    def register_local_var(self, var: Any) -> None:
        """Excludes the gradients of a variable from the reduction.

        They are divided by the number of ranks if scale_local_gradients is set.
        """
        self._reducer.register_local_var(var)

    # Programs for Horovod replace these two on an optimizer, so each step calls what they are then.

    def _allreduce(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Returns the gradients reduced over the ranks, and those of local variables scaled."""
        return self._reducer.allreduce(grads, vars, self._allreduce_grads)

    def _allreduce_grads(
        self,
        grads: Sequence[Any],
        vars: Sequence[Any] | None = None,
        use_generic_names: bool = False,
    ) -> list[Any]:
        """Reduces the gradients of variables that are not local.

        Args:
          vars: the same on all ranks; None only on TensorFlow.
          use_generic_names: ranks match gradients by their positions only, not by the names of the
            variables.
        """
        return self._reducer.reduce_all(grads, vars, use_generic_names)


def reducers_of(optimizer: Any) -> list[Reducer]:
    """Returns the reducers of an optimizer and, if it scales the loss, of the one inside it."""
    found = []
    while optimizer is not None:
        if isinstance(optimizer, Distributed):
            found.append(optimizer._reducer)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return found


def _scales_loss(optimizer: Any) -> bool:
    return hasattr(type(optimizer), "inner_optimizer") or "inner_optimizer" in vars(optimizer)
