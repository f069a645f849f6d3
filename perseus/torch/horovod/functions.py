"""Functions that make models, optimizers and objects the same on all ranks."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from perseus.common import objects
from perseus.common.process_sets import ProcessSet, global_process_set, set_id
from perseus.torch.horovod import handles
from perseus.torch.horovod.broadcast import broadcast_async_
from perseus.torch.horovod.eager import eager
from perseus_core import OperationKind, rank, refusals


@eager
def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Fills tensors, such as a model's state_dict or named_parameters, with those of the root.

    Args:
      params: a dict, or tensors, or pairs of a name and a tensor. Entries that are None are
        skipped.
      root_rank: a rank of the world.
    """
    set_number = set_id(process_set)
    named = [(name, tensor) for name, tensor in _named(params) if tensor is not None]
    started: list[int] = []
    error: Exception | None = None
    # If one fails, the others must still be sent, because other ranks wait for them.
    with torch.no_grad():
        for name, tensor in named:
            try:
                with refusals.refusing(OperationKind.BROADCAST, "broadcast", name, set_number):
                    _check_param(name, tensor)
                started.append(broadcast_async_(tensor, root_rank, name, process_set))
            except Exception as failure:
                error = error or failure
        for handle in started:
            try:
                handles.synchronize(handle)
            except Exception as failure:
                error = error or failure
    if error is not None:
        raise error


@eager
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives all ranks the root's optimizer state and options, such as the learning rate.

    Each rank's own state is replaced. No step is taken for it, so parameters do not change. As with
    Horovod, if this rank has no state, parameters without a gradient have zeros as their gradient
    afterwards; if `model` is given, those of its sparse embeddings are sparse.
    """
    had_state = bool(getattr(optimizer, "state", None))
    tensors = outline_optimizer_state(optimizer, root_rank, process_set)
    broadcast_parameters(tensors, root_rank, process_set)
    if not had_state:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        _add_gradients(params, _with_sparse_gradients(optimizer, model))


@eager
def outline_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    *,
    keeps: bool = False,
) -> list[tuple[str, torch.Tensor]]:
    """Gives all ranks the root's options and the form of its state; leaves gradients alone.

    Returns the tensors of that state, with the same names on all ranks. Only on the root they have
    values, which broadcast_parameters gives to the others; with `keeps`, also on ranks whose own
    state has this form.
    """
    set_number = set_id(process_set)
    tensors: list[torch.Tensor] = []
    outline: Any = None
    with refusals.refusing(OperationKind.BROADCAST, "broadcast", None, set_number):
        _check_optimizer(optimizer)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        if keeps or rank() == root_rank:
            outline = (
                [_without_params(group) for group in optimizer.param_groups],
                [_outline(optimizer.state.get(param, {}), tensors) for param in params],
            )
    options, states = broadcast_object(outline, root_rank, process_set=process_set)
    if rank() != root_rank:
        count = len(_places(states))
        numbered = [f"optimizer_state.{i}" for i in range(count)]
        with refusals.refusing_all(OperationKind.BROADCAST, "broadcast", numbered, set_number):
            if len(options) != len(optimizer.param_groups) or len(states) != len(params):
                raise ValueError(
                    f"rank {root_rank}'s optimizer has {len(options)} groups of {len(states)} "
                    f"parameters in all, this one {len(optimizer.param_groups)} of {len(params)}"
                )
        for group, root_options in zip(optimizer.param_groups, options, strict=True):
            group.update(root_options)
        if outline is None or not _are_equal(outline[1], states):
            tensors.clear()
            optimizer.state.clear()
            for param, state in zip(params, states, strict=True):
                if state:
                    optimizer.state[param] = _filled(state, tensors, param.device)
    return [(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)]


@eager
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank; on other ranks a copy made by cloudpickle."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


@eager
def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns copies of the ranks' objects, made by cloudpickle, in the order of the ranks."""
    return objects.allgather_object(obj, name, process_set)


def _named(params: Mapping[str, Any] | Iterable[Any]) -> Iterator[tuple[str | None, Any]]:
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
        raise ValueError(f"invalid params of type: {type(params)}")
    if isinstance(params, Mapping):
        by_name = {str(key): value for key, value in params.items()}
        yield from sorted(by_name.items(), key=lambda item: item[0])
        return
    for entry in params:
        yield entry if isinstance(entry, tuple) else (None, entry)


def _check_param(name: str | None, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"invalid params: {name or 'an entry'} is {type(tensor).__name__}")


def _check_optimizer(optimizer: Any) -> None:
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"optimizer is {type(optimizer).__name__}; it takes an Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")


def _with_sparse_gradients(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None
) -> set[torch.Tensor]:
    if isinstance(optimizer, torch.optim.SparseAdam):
        return {param for group in optimizer.param_groups for param in group["params"]}
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    modules = model.modules() if model is not None else ()
    return {module.weight for module in modules if isinstance(module, embeddings) and module.sparse}


def _add_gradients(params: Iterable[torch.Tensor], sparse: set[torch.Tensor]) -> None:
    """Sets the gradients of parameters that have none to zeros."""
    for param in params:
        if not param.requires_grad or param.grad is not None:
            continue
        if param in sparse:
            param.grad = torch.sparse_coo_tensor(
                param.new_empty(1, 0, dtype=torch.int64),
                param.new_empty(0, *param.shape[1:]),
                param.shape,
                check_invariants=False,
            )
        else:
            param.grad = torch.zeros_like(param, requires_grad=False)


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


# Replaces a tensor in an outline: its index in the list, and its shape, type and kind of device.
_Place = collections.namedtuple("_Place", "index shape dtype device_type")


def _outline(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns the value with its tensors replaced by places, and appends them to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        return {key: _outline(inner, tensors) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_outline(inner, tensors) for inner in value)
    return value


def _are_equal(one: Any, other: Any) -> bool:
    """Returns whether two outlines are equal; False if that cannot be said."""
    try:
        return bool(one == other)
    except Exception:
        return False


def _places(outline: Any) -> list[_Place]:
    """Returns the places in an outline."""
    if isinstance(outline, _Place):
        return [outline]
    if isinstance(outline, dict):
        outline = list(outline.values())
    if type(outline) in (list, tuple):
        return [place for inner in outline for place in _places(inner)]
    return []


def _filled(outline: Any, tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Returns the outline with new tensors in its places, and appends them to the list.

    They are on the parameter's device, or in CPU memory, where some optimizers count their steps.
    """
    if isinstance(outline, _Place):
        assert outline.index == len(tensors)
        kind = outline.device_type
        where = device if kind == device.type else torch.device(kind)
        tensors.append(torch.empty(outline.shape, dtype=outline.dtype, device=where))
        return tensors[-1]
    if isinstance(outline, dict):
        return {key: _filled(inner, tensors, device) for key, inner in outline.items()}
    if type(outline) in (list, tuple):
        return type(outline)(_filled(inner, tensors, device) for inner in outline)
    return outline
