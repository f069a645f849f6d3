"""Warns if a program does not use the optimizer that DistributedOptimizer returns."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable

import torch

from perseus.common.stacklevel import user_stacklevel

# By the id of a parameter: the use of the latest optimizer that was made for it.
_latest: dict[int, Use] = {}


class Use:
    """Tells whether an optimizer is used.

    A program that goes on with the optimizer that it has given to DistributedOptimizer trains each
    rank by itself. If an optimizer is gone and has never reduced a gradient, the next gradient of
    one of its parameters gives a warning, unless a later optimizer reduces that.
    """

    def __init__(self, optimizer: object, named: Iterable[tuple[torch.Tensor, str]]) -> None:
        self.has_begun = False
        self._names = {id(param): name for param, name in named}
        for param in self._names:
            _latest[param] = self
        params = [weakref.ref(param) for param, _ in named]
        # The finalizer refers to this object, so this object must not refer to the optimizer.
        weakref.finalize(optimizer, self._end, params).atexit = False

    def _end(self, params: Iterable[weakref.ref[torch.Tensor]]) -> None:
        if self.has_begun:
            for number in self._names:
                self._forget(number)
            return
        for ref in params:
            param = ref()
            if param is not None and param.requires_grad:
                self._warn_at_gradient(param)

    def _warn_at_gradient(self, param: torch.Tensor) -> None:
        def hook(param: torch.Tensor) -> None:
            handle.remove()
            if self._forget(id(param)) and not self.has_begun:
                self.has_begun = True  # one warning is enough
                warnings.warn(
                    f"{self._names[id(param)]!r} has a gradient that is not reduced: the "
                    "DistributedOptimizer that was made for it is gone, and has never taken a "
                    "step. Use the optimizer that DistributedOptimizer returns in place of the one "
                    "that you give to it; otherwise, each rank trains by itself.",
                    stacklevel=user_stacklevel(),
                )

        handle = param.register_post_accumulate_grad_hook(hook)

    def _forget(self, number: int) -> bool:
        """Returns whether no later optimizer was made for the parameter."""
        is_latest = _latest.get(number) is self
        if is_latest:
            del _latest[number]
        return is_latest
