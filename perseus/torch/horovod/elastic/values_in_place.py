"""What TorchState(copies=False) does: the values of the last commit stay where they are.

A collective that fails does so in backward or synchronize, before the optimizer has begun its step.
Then the tensors still have the values of the last commit, and a copy of them would be in vain. So
this notes when a step begins. A rank that has begun one, and could not commit it, has lost the
values of its last commit, and takes the state of a rank that has it.

That is sound as long as nothing can fail between the beginning of a step and the commit. At first,
copies are kept as ever, until a commit has shown that the program calls no operation there. They
are kept for good once it does.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.hooks import RemovableHandle

import perseus_core
from perseus.torch.horovod.async_completion import wait_for_all
from perseus.torch.horovod.eager import eager

__all__ = ["Marks", "ValuesInPlace"]


class Marks:
    """Tells whether tensors still are what they were, by their addresses and version counters.

    PyTorch counts the operations that write to a tensor, but not those on its `.data`, nor what
    fused optimizers do.
    """

    def __init__(self, tree: Any) -> None:
        self._tensors = list(_tensors(tree))  # which share their counters with the originals
        self._at_first = _marks(self._tensors)

    def have_changed(self) -> bool:
        """Returns whether one of these tensors has been written to."""
        return _marks(self._tensors) != self._at_first

    def differ_from(self, tree: Any) -> bool:
        """Returns whether the tree has other tensors, or one of them has been written to."""
        return _marks(_tensors(tree)) != self._at_first


class Handler(Protocol):
    """The handler of a model or an optimizer."""

    value: Any
    #: Whether a save copies everything; else large tensors stay where they are.
    copies: bool
    #: Those of the large tensors at the last save.
    marks: Marks | None

    def has_copy(self) -> bool:
        """Returns whether restore brings back all values that were saved."""

    def has_changed(self) -> bool:
        """Returns whether large tensors are not any more what they were at the last save."""

    def copy(self) -> None:
        """Copies everything, as a save does with `copies`."""


class ValuesInPlace:
    """Watches the steps of a state's optimizers."""

    def __init__(self, handlers: Iterable[Handler]) -> None:
        self._handlers = list(handlers)
        self._hooks: dict[int, tuple[weakref.ref[Any], RemovableHandle]] = {}
        self._is_trusted = True  # until an operation comes between a step and its commit
        self.has_saved()

    def commit_begins(self) -> None:
        """Decides whether this commit and later ones copy."""
        trouble = self._trouble or self._trouble_since_step()
        if trouble and self._is_trusted:
            self._is_trusted = False
            self._set_copies(True)
            warnings.warn(
                f"{trouble}. If an operation fails then, only a copy can undo what has changed, so "
                "the state keeps copies from now on. Commit after each step, call operations "
                "before optimizer.step() or after state.commit(), and let optimizer.step() alone "
                "change parameters; or use copies=True.",
                stacklevel=4,
            )
        elif self._operations_at_step is not None and self._is_trusted:
            self._set_copies(False)

    def has_saved(self) -> None:
        """Notes that the present values are those of the last commit."""
        self._operations_at_step: int | None = None  # that had been submitted when a step began
        self._trouble = ""
        self.watch_optimizers()

    def are_lost(self) -> bool:
        """Returns whether the values of the last commit are neither in place nor in a copy."""
        if all(handler.has_copy() for handler in self._handlers):
            return False
        has_begun = self._operations_at_step is not None
        return has_begun or any(handler.has_changed() for handler in self._handlers)

    def copy(self) -> None:
        """Copies the values before others take their place."""
        for handler in self._handlers:
            if not handler.has_copy():
                handler.copy()

    def _set_copies(self, copies: bool) -> None:
        for handler in self._handlers:
            handler.copies = copies

    def watch_optimizers(self) -> None:
        """Has each optimizer tell of its steps, and those that it has replaced no more."""
        for handler in self._handlers:
            optimizer = handler.value
            if not isinstance(optimizer, torch.optim.Optimizer):
                continue
            known = self._hooks.get(id(handler))
            if known is not None:
                if known[0]() is optimizer:
                    continue
                known[1].remove()
            hook = optimizer.register_step_pre_hook(_hook(weakref.ref(self)))
            self._hooks[id(handler)] = weakref.ref(optimizer), hook

    def step_begins(self) -> None:
        """Called when an optimizer has its gradients and is about to write to parameters."""
        if self._operations_at_step is not None:
            return
        wait_for_all()  # gradients must not fail later
        submitted, ended = _operations()
        if submitted > ended:
            self._trouble = "an operation was under way when optimizer.step() began"
        elif any(handler.marks and handler.marks.have_changed() for handler in self._handlers):
            self._trouble = "parameters were written to before optimizer.step()"
        self._operations_at_step = submitted

    def _trouble_since_step(self) -> str:
        if self._operations_at_step is None:
            if any(handler.has_changed() for handler in self._handlers):
                return "parameters were written to without optimizer.step()"
            return ""
        count = _operations()[0] - self._operations_at_step
        if count == 0:
            return ""
        return f"{count} operations came between optimizer.step() and state.commit()"


def _hook(of: weakref.ref[ValuesInPlace]) -> Any:
    """Returns a hook for an optimizer, which does not keep the state alive."""

    @eager
    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        values = of()
        if values is not None:
            values.step_begins()

    return before_step


def _operations() -> tuple[int, int]:
    """Returns how many operations this process has submitted, and how many of them have ended."""
    counts = perseus_core.counters()
    ended = counts["operations_completed"] + counts["operations_failed"]
    return counts["operations_submitted"], ended


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from _tensors(each)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _tensors(each)


def _marks(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    return [(_address(tensor), _version(tensor)) for tensor in tensors]


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
