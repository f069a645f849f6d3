"""Hooks on parameters, which hand over gradients as soon as backward has accumulated them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch.utils.hooks import RemovableHandle

from perseus.torch.horovod.buckets import Bucket

# By the id of a parameter: the hooks that it belongs to. Two hooks would reduce a gradient twice at
# the same time. An entry of hooks that are gone has no effect.
_owners: dict[int, weakref.ref[Hooks]] = {}


class Reducer(Protocol):
    """What the hooks hand gradients to."""

    def reduce(self, bucket: Bucket) -> None: ...


class Hooks:
    """The hooks of one optimizer. The latest optimizer with a hook on a parameter has the only one.

    The user may have wrapped an optimizer anew while something still refers to the old one, which
    must then not be used any more.
    """

    def __init__(self, gradients: Reducer) -> None:
        self._owner = weakref.ref(gradients)
        self._ref = weakref.ref(self)
        self._is_replaced = False
        self._of_buckets: dict[Bucket, list[RemovableHandle]] = {}

    def add(self, bucket: Bucket) -> None:
        """Adds hooks to the parameters of a bucket, which start its reduction."""
        self._of_buckets[bucket] = []
        for index, param in enumerate(bucket.params):
            self._take_over(param)
            hook = _hooked(param, self._make_hook(bucket, index))
            weakref.finalize(self, _unhook, hook, id(param), self._ref)
            self._of_buckets[bucket].append(hook)

    def remove(self, bucket: Bucket) -> None:
        """Removes the hooks of a bucket."""
        hooks = self._of_buckets.pop(bucket)
        for hook, param in zip(hooks, bucket.params, strict=True):
            _unhook(hook, id(param), self._ref)

    def check(self) -> None:
        """Raises ValueError if another optimizer has a hook on one of these parameters."""
        if self._is_replaced:
            raise ValueError(
                "another DistributedOptimizer was made later for parameters of this one; use that "
                "one, since the gradients of a parameter can be reduced by one optimizer only"
            )

    def _take_over(self, param: torch.Tensor) -> None:
        before = _owners[id(param)]() if id(param) in _owners else None
        if before is not None and before is not self:
            before._is_replaced = True
            for bucket in list(before._of_buckets):
                before.remove(bucket)
        _owners[id(param)] = self._ref

    def _make_hook(self, bucket: Bucket, index: int) -> Callable[[torch.Tensor], None]:
        # The parameters hold the hook, so the hook must not keep an unused optimizer alive.
        owner = self._owner

        def hook(param: torch.Tensor) -> None:
            left = bucket.passes_left
            if bucket.is_deferred:
                raise RuntimeError(
                    f"backward reached {bucket.name}, whose last update is deferred: its parameter "
                    "was used in a way that Python does not see. Call optimizer.apply_updates() "
                    "before the forward pass, or do not use overlap_forward."
                )
            if bucket.finish is not None or left[index] <= 0:
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before "
                    "call to step(). Increase backward_passes_per_step to accumulate gradients "
                    "locally."
                )
            if param.grad.requires_grad:
                raise AssertionError("a gradient that is reduced must not itself require one")
            left[index] -= 1
            if not any(left):
                gradients = owner()
                if gradients is not None:
                    gradients.reduce(bucket)

        return hook


def _hooked(param: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
    """Registers a hook, also on a parameter that has a gradient but requires none any more."""
    if param.requires_grad:
        return param.register_post_accumulate_grad_hook(hook)
    param.requires_grad_(True)
    try:
        return param.register_post_accumulate_grad_hook(hook)
    finally:
        param.requires_grad_(False)


def _unhook(hook: RemovableHandle, param: int, owner: weakref.ref[Hooks]) -> None:
    hook.remove()
    if _owners.get(param) is owner:
        del _owners[param]
