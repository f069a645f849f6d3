"""The base of all distributed optimizers of Keras."""

from __future__ import annotations

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
