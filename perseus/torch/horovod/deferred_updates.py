"""The updates of a step that has not waited for its gradients.

A parameter is updated before its module's forward, together with the module's other parameters, or
when something else uses it: see watched_tensors. So nobody ever sees it without its update.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from perseus.torch.horovod.gradients import Bucket, Gradients, deferred
from perseus.torch.horovod.watched_tensors import can_watch, unwatch, watch

#: The rest of a step, for some of the parameters.
Update = Callable[[list[torch.Tensor]], None]


class DeferredUpdates:
    """The updates of one optimizer's last step that have not happened yet. Any thread."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._lock = threading.RLock()
        self._settling_in: int | None = None  # a thread
        self._hook: Any = None
        self._forget()

    def _forget(self) -> None:
        # By the first of their parameters that the forward pass needs.
        self._buckets: list[Bucket] = []
        # Of parameters and of gradients.
        self._owner: dict[torch.Tensor, Bucket] = {}
        self._watched: dict[Bucket, list[torch.Tensor]] = {}
        self._reduced: Mapping[torch.Tensor, torch.Tensor] = {}
        self._update: Update = lambda params: None

    def defer(self, reduced: Mapping[torch.Tensor, torch.Tensor], update: Update) -> None:
        """Puts off the updates of all parameters, whose gradients are being reduced.

        Args:
          reduced: by parameter, the tensor that is reduced in place.
          update: updates parameters whose tensors are reduced; called for each once.
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
        """Whether this very thread is just applying some."""
        return self._settling_in == threading.get_ident()

    def keep_gradients(self) -> None:
        """Takes what is being reduced out of the parameters' `grad`, as zero_grad may do."""
        for param, reduced in self._reduced.items():
            if param in self._owner and param.grad is reduced:
                param.grad = None

    def apply(self) -> None:
        """Applies all that are deferred."""
        self._settle(list(self._buckets))

    def apply_to(self, tensors: Iterable[torch.Tensor]) -> None:
        """Applies those of these parameters or gradients, and of what else is ready to be."""
        owners = dict.fromkeys(map(self._owner.get, tensors))
        needed = [bucket for bucket in owners if bucket is not None]
        if needed:
            self._settle(needed)

    def _seen_of(self, bucket: Bucket) -> Iterator[torch.Tensor]:
        """The parameters, and the gradients that are being reduced where the user sees them."""
        for param in bucket.params:
            yield param
            reduced = self._reduced.get(param)
            if reduced is not None and param.grad is reduced and can_watch(reduced):
                yield reduced

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        # TorchScript looks at all of its parameters, and not from Python.
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
                # Whoever comes to them in another thread waits for the lock.
                with _outside_of_forward(params[0].device):
                    self._gradients.finish(settled)
                    self._update(params)
            except BaseException:
                # What is left belongs to a step that has failed.
                settled = list(self._buckets)
                with contextlib.suppress(Exception), _outside_of_forward(params[0].device):
                    self._gradients.finish(settled)
                raise
            finally:
                self._settling_in = None
                self._reveal(settled)

    def _reveal(self, buckets: Sequence[Bucket]) -> None:
        """Makes their tensors ordinary ones again."""
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
    """Applies what any optimizer has deferred, as long as there is an engine to wait for."""
    for apply in list(deferred.values()):
        try:
            apply()
        except Exception as error:
            warnings.warn(f"the last step's update is lost: {error}", stacklevel=2)


@contextlib.contextmanager
def _outside_of_forward(device: torch.device) -> Iterator[None]:
    """As where a step is usually taken: neither autograd, nor inference mode, nor autocast, nor a
    trace; and tensors are not watched."""
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
