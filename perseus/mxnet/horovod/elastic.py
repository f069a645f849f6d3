"""Training that survives the loss of ranks; see perseus.common.elastic.

    state = hvd.elastic.MXNetState(net=net, trainer=trainer, step=0)

    @hvd.elastic.run
    def train(state):
        while state.step < steps:
            ...
            trainer.step(batch_size)
            state.step += 1
            state.commit()

Horovod has none for MXNet.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import mxnet as mx
import numpy as np

from perseus.common.elastic import Train, drain, run_fn
from perseus.common.elastic_sampler import ElasticSampler
from perseus.common.handled_state import SAMPLERS, HandledState, Registry, StateHandler
from perseus.common.process_sets import carried_over
from perseus.common.state_sources import left_by
from perseus.mxnet.engine import NDArray, copy_to
from perseus.mxnet.horovod.functions import broadcast_object, broadcast_parameters
from perseus.mxnet.horovod.mpi_ops import broadcast_, init, rank, shutdown
from perseus.mxnet.horovod.state_memory import part_of

__all__ = ["ElasticSampler", "MXNetState", "drain", "run"]


def run(func: Train) -> Train:
    """Decorates `train(state, ...)`, which restarts from the last commit when ranks are lost."""

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = func(state, *args, **kwargs)
        mx.nd.waitall()  # the last steps may still fail
        return result

    return cast(Train, run_fn(wrapper, _reset))


def _reset() -> None:
    with carried_over():
        shutdown()
        init()


class ParametersStateHandler(StateHandler[Any]):
    """Handles the parameters of a Block, or a ParameterDict."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved: dict[str, NDArray] = {}
        self.save()

    def save(self) -> None:
        present = {name: _data(param) for name, param in self._parameters().items()}
        self._saved = _copied(present, self._saved)

    def restore(self) -> None:
        _forget_errors()
        for name, param in self._parameters().items():
            param.set_data(self._saved[name])

    def sync(self) -> None:
        mx.nd.waitall()
        named = dict(sorted(self._parameters().items()))
        left = left_by(self.sources, named, lambda param: part_of(_data(param)))
        for name in named.keys() - left.keys():
            copy_to(_data(named[name]), named[name].list_data())
        broadcast_parameters(left, root_rank=0)

    def _parameters(self) -> Any:
        is_block = isinstance(self.value, mx.gluon.Block)
        return self.value.collect_params() if is_block else self.value


class TrainerStateHandler(StateHandler[mx.gluon.Trainer]):
    """Handles what a Trainer's optimizer has for each parameter, and its counts and rates."""

    def __init__(self, trainer: mx.gluon.Trainer) -> None:
        super().__init__(trainer)
        self._saved: list[Any] = []
        self.save()

    def save(self) -> None:
        self._saved = _copied([updater.states for updater in self._updaters()], self._saved)
        self._settings = self._present_settings()

    def restore(self) -> None:
        _forget_errors()
        for updater, states in zip(self._updaters(), self._saved, strict=True):
            _set_states(updater, _copied(states))
        self._set_settings(self._settings)

    def sync(self) -> None:
        updaters = self._updaters()
        states = [updater.states for updater in updaters]
        own_kinds = _map(_Kind.of, states)
        settings, kinds = broadcast_object((self._present_settings(), own_kinds))
        if self.sources is not None and self.sources.has_state and kinds == own_kinds:
            pairs = zip(states, kinds, strict=True)
            states = [{key: own[key] for key in of_root} for own, of_root in pairs]
        elif rank() != 0:
            states = [
                _map(functools.partial(_Kind.made, context=context), of_device)
                for of_device, context in zip(kinds, self.value._contexts, strict=True)
            ]
        mx.nd.waitall()
        arrays = {f"trainer_state.{i}": array for i, array in enumerate(_arrays(states))}
        for name, array in left_by(self.sources, arrays, part_of).items():
            broadcast_(array, 0, name=name)
        mx.nd.waitall()
        if rank() != 0:
            for updater, of_device in zip(updaters, states, strict=True):
                _set_states(updater, of_device)
            self._set_settings(settings)

    def _updaters(self) -> list[Any]:
        if self.value._update_on_kvstore:
            raise ValueError(
                "the Trainer updates on its KVStore, which keeps its state; it must have "
                "update_on_kvstore=False, or be a DistributedTrainer"
            )
        updaters: list[Any] = self.value._updaters
        return updaters

    def _present_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = copy.deepcopy(self.value._optimizer.__getstate__())
        return settings

    def _set_settings(self, settings: dict[str, Any]) -> None:
        vars(self.value._optimizer).update(copy.deepcopy(settings))


_registry: Registry = [
    (mx.gluon.Block, ParametersStateHandler),
    (mx.gluon.ParameterDict, ParametersStateHandler),
    (mx.gluon.Trainer, TrainerStateHandler),
    *SAMPLERS,
]


class MXNetState(HandledState):
    """What is given by name, as attributes.

    Blocks, ParameterDicts, Trainers and ElasticSamplers have handlers: save copies their state, and
    sync gives all ranks rank 0's present one. Other values are plain: save keeps them as they are,
    so change them by assignment only.

    Raises ValueError if a parameter is not initialized yet, or if a Trainer updates on a KVStore.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, _registry, kwargs)

    def _finish_operations(self) -> None:
        mx.nd.waitall()


def _data(param: Any) -> NDArray:
    try:
        data: NDArray = param.list_data()[0]
    except mx.gluon.parameter.DeferredInitializationError:
        raise ValueError(
            f"parameter {param.name} is not initialized yet; it must be when a state is made: pass "
            "data through the Block before"
        ) from None
    return data


def _forget_errors() -> None:
    """Lets arrays be written to again that operations have failed to write."""
    with contextlib.suppress(mx.MXNetError):
        mx.nd.waitall()


@dataclass(frozen=True)
class _Kind:
    """An array without its contents."""

    type: type[NDArray]
    shape: tuple[int, ...]
    dtype: str
    device: str

    @classmethod
    def of(cls, array: NDArray) -> _Kind:
        return cls(type(array), array.shape, np.dtype(array.dtype).name, str(array.context))

    def made(self, context: mx.Context) -> NDArray:
        module = mx.np if issubclass(self.type, mx.np.ndarray) else mx.nd
        array: NDArray = module.zeros(self.shape, dtype=self.dtype, ctx=context)
        return array


def _map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns the tree with function(array) for each array."""
    if isinstance(tree, dict):
        return {key: _map(function, each) for key, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(function, each) for each in tree)
    return function(tree) if isinstance(tree, (NDArray, _Kind)) else tree


def _arrays(tree: Any) -> list[NDArray]:
    found: list[NDArray] = []
    _map(found.append, tree)
    return found


def _copied(tree: Any, last: Any = None) -> Any:
    """Returns a copy of a tree of arrays, which uses those of the last copy again if they fit."""
    free = iter(_arrays(last))

    def copy_of(array: NDArray) -> NDArray:
        target = next(free, None)
        if target is None or _Kind.of(target) != _Kind.of(array):
            return array.copy()
        array.copyto(target)
        return target

    return _map(copy_of, tree)


def _set_states(updater: Any, states: dict[Any, Any]) -> None:
    updater.states = states
    updater.states_synced = dict.fromkeys(states, True)
