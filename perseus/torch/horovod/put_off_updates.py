"""The updates of a step that has not waited for its gradients.

A parameter is updated before its module's forward, together with the module's other parameters, or
when something else uses it: see noticing. So nobody ever sees it without its update.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from perseus.torch.horovod.gradients import Bucket, Gradients, put_off
from perseus.torch.horovod.noticing import make_noticing, make_ordinary


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
                make_noticing(param, self)
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
                self._reveal(list(self._buckets), check=False)
                with contextlib.suppress(Exception):
                    self._gradients.finish(self._gradients.buckets)
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
            make_ordinary(param)
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


@contextlib.contextmanager
def _outside_of_forward(device: torch.device) -> Iterator[None]:
    """As where a step is usually taken: neither autograd, nor inference mode, nor autocast."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield
