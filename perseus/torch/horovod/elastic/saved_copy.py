"""A copy of a state dict that is brought up to date in place, so that to save again costs a copy
and no memory."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch

__all__ = ["SavedCopy", "is_plain"]

#: These never change, so the copy may have them, too.
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.Size, torch.dtype, torch.device),
)


class SavedCopy:
    """The copy of a tree of dicts, lists, tuples, tensors and other objects.

    A tensor is copied into that of the last copy if it has the same place in the tree and the same
    shape, type and device. Tensors that share their elements share them in the copy. Other kinds of
    tensors and objects are copied by deepcopy each time.
    """

    def __init__(self) -> None:
        self._tree: Any = None

    def update(self, tree: Any) -> None:
        self._tree = _Pass().copied(tree, self._tree)

    def new(self) -> Any:
        """Returns a tree that shares nothing with the copy."""
        return copy.deepcopy(self._tree)


class _Pass:
    """One update of a copy."""

    def __init__(self) -> None:
        #: this pass's tensors and their copies, by address
        self._copies: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        #: by device and type: tensors of the last copy that this pass uses again, and what goes
        #: into them; a GPU copies those of one type together
        self._pairs: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._taken: set[int] = set()

    @torch.no_grad()
    def copied(self, tree: Any, last: Any) -> Any:
        result = self._copy(tree, last)
        for targets, sources in self._pairs.values():
            torch._foreach_copy_(targets, sources)
        return result

    def _copy(self, value: Any, last: Any) -> Any:
        kind = type(value)
        if kind in _CONSTANTS:
            return value
        if kind in (dict, OrderedDict):
            before = last if isinstance(last, dict) else {}
            copied = kind((key, self._copy(each, before.get(key))) for key, each in value.items())
            if kind is OrderedDict:
                vars(copied).update(vars(value))  # a module's has versions in _metadata
            return copied
        if kind in (list, tuple):
            before = dict(enumerate(last)) if isinstance(last, (list, tuple)) else {}
            return kind(self._copy(each, before.get(i)) for i, each in enumerate(value))
        if is_plain(value):
            return self._copy_tensor(value, last)
        return copy.deepcopy(value)

    def _copy_tensor(self, tensor: torch.Tensor, last: Any) -> torch.Tensor:
        of_address = self._copies.setdefault(tensor.data_ptr(), [])
        for other, copy_of_other in of_address:
            if _are_alike(other, tensor) and other.stride() == tensor.stride():
                return copy_of_other
        # Tensors that were tied when the last copy was made have the same one there.
        if is_plain(last) and _are_alike(last, tensor) and id(last) not in self._taken:
            self._taken.add(id(last))
            targets, sources = self._pairs.setdefault((tensor.device, tensor.dtype), ([], []))
            targets.append(last)
            sources.append(tensor)
            result: torch.Tensor = last
        else:
            result = tensor.clone()
        of_address.append((tensor, result))
        return result


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same_type = one.dtype == other.dtype and one.device == other.device
    return bool(same_type and one.shape == other.shape)


def is_plain(value: Any) -> bool:
    """Returns whether a value of a state dict is a tensor that is copied element by element."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_meta)
    )
