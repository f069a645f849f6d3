"""The deferred updates of a step that did not wait for its gradients.

A parameter is updated before the forward pass of its module, together with the module's other
parameters, or before any other use of it: see watched_tensors. So no code ever sees the old value.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from perseus.torch.horovod.buckets import Bucket
from perseus.torch.horovod.gradients import Gradients, deferred
from perseus.torch.horovod.watched_tensors import can_watch, unwatch, watch

#: Updates some of the parameters, which is the rest of a step.
Update = Callable[[list[torch.Tensor]], None]


class DeferredUpdates:
    """The deferred updates of one optimizer's last step. Any thread may use it."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._lock = threading.RLock()
        self._settling_in: int | None = None  # the id of a thread
        self._hook: Any = None
        self._forget()

    def _forget(self) -> None:
        # In the order in which the forward pass needs them.
        self._buckets: list[Bucket] = []
        # From parameters and gradients to their buckets.
        self._owner: dict[torch.Tensor, Bucket] = {}
        self._watched: dict[Bucket, list[torch.Tensor]] = {}
        self._reduced: Mapping[torch.Tensor, torch.Tensor] = {}
        self._update: Update = lambda params: None

    def defer(self, reduced: Mapping[torch.Tensor, torch.Tensor], update: Update) -> None:
        """Defers the updates of all parameters, while their gradients are being reduced.

        Args:
          reduced: the tensor that is reduced in place, by parameter.
          update: updates parameters whose tensors are reduced; it is called once for each.
        """
        self._buckets = list(self._gradients.buckets)
        self._reduced = reduced
        self._update = update
        for bucket in self._buckets:
            bucket.is_deferred = True
            deferred[bucket.id] = self.apply
            self._watched[bucket] = list(self._seen_of(bucket))
            for tensor in self._watched[bucket]:
                self._owner[tensor] = bucket
                watch(tensor, self)
        self._hook = register_module_forward_pre_hook(self._before_forward)

    def are_under_way(self) -> bool:
        return bool(self._buckets)

    def are_settling_here(self) -> bool:
        """Returns whether the calling thread is applying some of them."""
        return self._settling_in == threading.get_ident()

    def keep_gradients(self) -> None:
        """Removes the tensors that are being reduced from the parameters' `grad`, for zero_grad."""
        for param, reduced in self._reduced.items():
            if param in self._owner and param.grad is reduced:
                param.grad = None

    def apply(self) -> None:
        """Applies all deferred updates."""
        self._settle(list(self._buckets))

    def apply_to(self, tensors: Iterable[torch.Tensor]) -> None:
        """Applies the updates of these parameters or gradients, and others that are ready."""
        owners = dict.fromkeys(map(self._owner.get, tensors))
        needed = [bucket for bucket in owners if bucket is not None]
        if needed:
            self._settle(needed)

    def _seen_of(self, bucket: Bucket) -> Iterator[torch.Tensor]:
        """Yields the parameters, and the gradients being reduced that the user can see."""
        for param in bucket.params:
            yield param
            reduced = self._reduced.get(param)
            if reduced is not None and param.grad is reduced and can_watch(reduced):
                yield reduced

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        # TorchScript uses all parameters of the module, and not through Python.
        is_script = isinstance(module, torch.jit.ScriptModule)
        self.apply_to(module.parameters() if is_script else module._parameters.values())

    def _settle(self, needed: list[Bucket]) -> None:
        with self._lock:
            settled = [bucket for bucket in needed if bucket.is_deferred]
            if not settled:
                return
            for bucket in self._buckets:
                if bucket not in settled:
                    if not bucket.is_done():
                        break
                    settled.append(bucket)
            params = [param for bucket in settled for param in bucket.params]
            self._settling_in = threading.get_ident()
            try:
                # Another thread that uses one of them waits for the lock.
                with _outside_of_forward(params[0].device):
                    self._gradients.finish(settled)
                    self._update(params)
            except BaseException:
                # The updates that are left belong to a step that has failed.
                settled = list(self._buckets)
                with contextlib.suppress(Exception), _outside_of_forward(params[0].device):
                    self._gradients.finish(settled)
                raise
            finally:
                self._settling_in = None
                self._reveal(settled)

    def _reveal(self, buckets: Sequence[Bucket]) -> None:
        """Stops watching the tensors of these buckets."""
        for bucket in buckets:
            bucket.is_deferred = False
            deferred.pop(bucket.id, None)
            for tensor in self._watched[bucket]:
                del self._owner[tensor]
                unwatch(tensor)
        self._buckets = [bucket for bucket in self._buckets if bucket.is_deferred]
        if not self._buckets:
            self._hook.remove()
            self._forget()


def apply_all_updates() -> None:
    """Applies the deferred updates of all optimizers, while the engine can still be waited for."""
    for apply in list(deferred.values()):
        try:
            apply()
        except Exception as error:
            warnings.warn(f"the update of the last step is lost: {error}", stacklevel=2)


@contextlib.contextmanager
def _outside_of_forward(device: torch.device) -> Iterator[None]:
    """Sets the state in which a step is usually taken.

    There is no autograd, inference mode, autocast or trace, and tensors are not watched.
    """
    tracing = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        with (
            torch._C.DisableTorchFunctionSubclass(),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
        ):
            yield
    finally:
        torch._C._set_tracing_state(tracing)
