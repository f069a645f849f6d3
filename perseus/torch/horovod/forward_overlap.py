"""Updates that are put off until the next forward pass needs their parameters.

Communication then goes on behind what follows a step, and behind the forward pass up to the layer
that a gradient belongs to. A parameter whose update is put off is of a class that notices every use
of it from Python: the update happens then, so that nobody ever sees the parameter without it. A
module's own parameters are updated together, before its forward.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from perseus.torch.horovod.gradients import Bucket, Gradients, put_off

_HARMLESS_PROPERTIES = (
    *("requires_grad", "is_leaf", "dtype", "device", "layout", "shape", "ndim"),
    *("is_sparse", "is_cpu", "is_cuda"),
)
_HARMLESS_METHODS = (
    *("size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex"),
)
#: What may be asked of a parameter whose update is put off: none of it depends on its elements.
_HARMLESS = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in ("grad", *_HARMLESS_PROPERTIES)),
        *(getattr(torch.Tensor, name) for name in _HARMLESS_METHODS),
        torch.Tensor.grad.__set__,  # type: ignore[attr-defined]
        torch.Tensor.grad.__delete__,  # type: ignore[attr-defined]
    ]
)


class PutOffUpdates:
    """The updates of one optimizer's last step that have not happened yet."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        # By the first of their parameters that the forward pass needs.
        self._buckets: list[Bucket] = []
        self._owner: dict[torch.Tensor, Bucket] = {}
        self._reduced: Mapping[torch.Tensor, torch.Tensor] = {}
        self._versions: dict[torch.Tensor, int] = {}
        self._update: Callable[[list[torch.Tensor]], None] = lambda params: None
        self._hook: Any = None
        #: Whether an update is just being applied.
        self.is_settling = False
        self._lock = threading.RLock()

    def put_off(
        self,
        reduced: Mapping[torch.Tensor, torch.Tensor],
        update: Callable[[list[torch.Tensor]], None],
    ) -> None:
        """Puts off the updates of all parameters, whose gradients are being reduced.

        Args:
          reduced: by parameter, the tensor that is reduced in place.
          update: updates parameters whose tensors are reduced; called for each once.
        """
        self._buckets = list(self._gradients.buckets)
        self._reduced = reduced
        self._versions = {param: tensor._version for param, tensor in reduced.items()}
        self._update = update
        for bucket in self._buckets:
            bucket.is_put_off = True
            put_off[bucket.id] = self.apply
            for param in bucket.params:
                self._owner[param] = bucket
                _make_noticing(param, self)
        self._hook = register_module_forward_pre_hook(self._before_forward)
        _under_way.add(self)

    def are_under_way(self) -> bool:
        return bool(self._buckets)

    def keep_gradients(self) -> None:
        """Takes what is being reduced out of the parameters' `grad`, as zero_grad may do."""
        for param in self._owner:
            if param.grad is self._reduced[param]:
                param.grad = None

    def apply(self) -> None:
        """Applies all that are put off."""
        self._settle(list(self._buckets))

    def apply_to(self, params: Iterable[torch.Tensor]) -> None:
        """Applies those of these parameters, and of what else is ready to be."""
        needed = {id(bucket): bucket for bucket in map(self._owner.get, params) if bucket}
        if needed:
            self._settle(list(needed.values()))

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        # TorchScript looks at all of its parameters, and not from Python.
        is_script = isinstance(module, torch.jit.ScriptModule)
        self.apply_to(module.parameters() if is_script else module._parameters.values())

    def _settle(self, needed: list[Bucket]) -> None:
        with self._lock:
            settled = [bucket for bucket in needed if bucket.is_put_off]
            if not settled:
                return
            self.is_settling = True
            for bucket in self._buckets:
                if bucket not in settled:
                    if not bucket.is_done():
                        break
                    settled.append(bucket)
            try:
                params = self._reveal(settled)
                self._gradients.finish(settled)
                with _outside_of_forward(params[0].device):
                    self._update(params)
            except BaseException:
                # What is left belongs to a step that has failed.
                rest = list(self._buckets)
                self._reveal(rest, check=False)
                with contextlib.suppress(Exception):
                    self._gradients.finish(rest)
                raise
            finally:
                self.is_settling = False

    def _reveal(self, buckets: Sequence[Bucket], check: bool = True) -> list[torch.Tensor]:
        """Makes the parameters ordinary ones again."""
        params = [param for bucket in buckets for param in bucket.params]
        changed = []
        for bucket in buckets:
            bucket.is_put_off = False
            put_off.pop(bucket.id, None)
            changed += [bucket.name for param in bucket.params if self._has_changed(param)]
        for param in params:
            del self._owner[param]
            _make_ordinary(param)
        self._buckets = [bucket for bucket in self._buckets if bucket.is_put_off]
        if not self._buckets:
            self._hook.remove()
            _under_way.discard(self)
        if changed and check:
            raise RuntimeError(
                f"gradients were changed in place while they were being reduced ({changed[0]}): "
                "with overlap_forward, call optimizer.zero_grad(), or set them to None"
            )
        return params

    def _has_changed(self, param: torch.Tensor) -> bool:
        return self._reduced[param]._version != self._versions[param]


_under_way: weakref.WeakSet[PutOffUpdates] = weakref.WeakSet()


def apply_all_updates() -> None:
    """Applies what any optimizer has put off, as long as there is an engine to wait for."""
    for updates in list(_under_way):
        try:
            updates.apply()
        except Exception as error:
            warnings.warn(f"the last step's update is lost: {error}", stacklevel=2)


def can_put_off(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step in parts, later, does the same as a whole one now."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    is_scaled = getattr(optimizer, "grad_scale", None) is not None or (
        getattr(optimizer, "found_inf", None) is not None
    )
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return not (
        any(hooks)
        or is_scaled
        or any(group.get("differentiable") for group in optimizer.param_groups)
        or any(type(param) not in _NOTICING for param in params)
        or _has_compiled()
    )


@contextlib.contextmanager
def partial_groups(
    optimizer: torch.optim.Optimizer,
    options: Sequence[dict[str, Any]],
    params: Iterable[torch.Tensor],
) -> Iterator[None]:
    """Within it, the optimizer has these parameters only, and these options of its groups.

    RuntimeError at the end if the optimizer has changed an option: then it keeps state there, of
    which each part of a step would see another.
    """
    chosen = set(params)
    whole = optimizer.param_groups
    parts = [
        (before, {**before, "params": [param for param in group["params"] if param in chosen]})
        for before, group in zip(options, whole, strict=True)
    ]
    optimizer.param_groups = [part for _, part in parts if part["params"]]
    try:
        yield
    finally:
        optimizer.param_groups = whole
    for before, part in parts:
        for key, value in part.items():
            if key != "params" and before.get(key) is not value:
                raise RuntimeError(
                    f"{type(optimizer).__name__} keeps {key!r} in its parameter groups, so it "
                    "cannot update one parameter after the other; leave out overlap_forward"
                )


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The groups' options as they are now; what schedulers do to them later does not show."""
    return [
        {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def _has_compiled() -> bool:
    """Whether torch.compile is in use.

    Compiled code takes all of its parameters at once and expects them to be of their own class, so
    there is nothing to gain, and code would be compiled again.
    """
    dynamo = sys.modules.get("torch._dynamo")
    counters = getattr(getattr(dynamo, "utils", None), "counters", None)
    return counters is not None and counters["frames"]["total"] > 0


@contextlib.contextmanager
def _outside_of_forward(device: torch.device) -> Iterator[None]:
    """As where a step is usually taken: neither autograd, nor inference mode, nor autocast."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


def _noticed(params: Iterable[Any]) -> None:
    """Parameters of one of the classes below are being used."""
    for param in params:
        updates: PutOffUpdates | None = param.__dict__.get("_perseus_updates")
        if updates is not None:
            updates.apply_to([param])
        _make_ordinary(param)  # a copy of one has the class, and nothing that is put off


def _make_noticing(param: torch.Tensor, updates: PutOffUpdates) -> None:
    param._perseus_updates = updates  # type: ignore[attr-defined]
    param.__class__ = _NOTICING[type(param)]


def _make_ordinary(param: torch.Tensor) -> None:
    param.__dict__.pop("_perseus_updates", None)
    param.__class__ = _ORDINARY.get(type(param), type(param))


def _noticing_in(value: Any) -> Iterator[Any]:
    if type(value) in _ORDINARY:
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _noticing_in(inner)
    elif isinstance(value, dict):
        yield from _noticing_in(list(value.values()))


def _noticing_class(base: Any) -> Any:
    class Noticing(base):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            used = [] if func in _HARMLESS else list(_noticing_in((args, kwargs)))
            if not used:
                return super().__torch_function__(func, types, args, kwargs or {})
            _noticed(used)
            return func(*args, **(kwargs or {}))

        def __deepcopy__(self, memo: Any) -> Any:
            _noticed([self])
            return self.__deepcopy__(memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _noticed([self])
            return self.__reduce_ex__(protocol)

    Noticing.__name__ = Noticing.__qualname__ = base.__name__
    Noticing.__module__ = base.__module__
    return Noticing


#: By the classes of parameters whose updates can be put off, those that notice their use.
_NOTICING: dict[type, type] = {
    cls: _noticing_class(cls) for cls in (torch.Tensor, torch.nn.Parameter)
}
_ORDINARY = {noticing: ordinary for ordinary, noticing in _NOTICING.items()}
