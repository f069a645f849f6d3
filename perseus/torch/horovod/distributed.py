"""The class that a DistributedOptimizer puts before the optimizer's own class."""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from perseus.common.process_sets import ProcessSet, set_id
from perseus.common.reduce_ops import Average, Sum
from perseus.common.stacklevel import user_stacklevel
from perseus.torch.horovod.allreduce import allreduce_
from perseus.torch.horovod.compression import Compressor
from perseus.torch.horovod.deferred_updates import Update
from perseus.torch.horovod.eager import eager
from perseus.torch.horovod.functions import broadcast_object
from perseus.torch.horovod.gradients import Gradients
from perseus.torch.horovod.parameter_groups import Groups
from perseus.torch.horovod.partial_step import copied_groups, partial_groups
from perseus.torch.horovod.trained_parameters import TrainedParameters
from perseus.torch.horovod.unused import Use
from perseus_core import driver_link, size
from perseus_core.arguments import whole_number
from perseus_core.names import next_object

if TYPE_CHECKING:
    # What DistributedOptimizer returns derives from the class of an optimizer, too.
    from torch.optim import Optimizer as _Optimizer
else:
    _Optimizer = object


class Distributed(_Optimizer):
    """Reduces gradients while backward runs, and lets the optimizer step with the results."""

    _reduces_in_backward = True
    #: the optimizer that was wrapped, which shares the groups and the state
    _original: torch.optim.Optimizer

    def _distribute(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: Groups,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.op = op
        self.backward_passes_per_step = backward_passes_per_step
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        trained = self._trained(named_parameters, process_set)
        self._parameter_names = trained.names
        self._loss_name = f"loss.{trained.check}"
        self._synchronized = False
        self._should_synchronize = True
        self._gradients: Gradients | None = None
        self._use: Use | None = None
        # A job that other ranks may join has gradients to reduce then.
        if not (process_set.included() and (size() > 1 or driver_link.is_elastic())):
            return
        order = None
        if isinstance(groups, int):
            root = process_set.ranks[0] if process_set.ranks else 0
            mine = [trained.names[param] for param in trained.params]
            order = broadcast_object(mine, root, process_set=process_set)
        self._gradients = Gradients(
            trained,
            groups,
            order,
            compression,
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            sparse_as_dense,
            process_set,
            self._reduces_in_backward,
        )
        self._use = Use(self, [(param, trained.names[param]) for param in trained.params])

    def __reduce__(self) -> tuple[Any, ...]:
        """Gives copies the optimizer's own class, because their parameters have no hooks."""
        return _bare, (type(self).__bases__[-1],), self.__getstate__()

    def _trained(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        process_set: ProcessSet,
    ) -> TrainedParameters:
        if named_parameters is not None:
            return TrainedParameters(self, self._names_of(named_parameters))
        return TrainedParameters(self, None, next_object("optimizer", set_id(process_set)))

    def _names_of(
        self, named_parameters: Iterable[tuple[str, torch.Tensor]]
    ) -> dict[torch.Tensor, str]:
        if not isinstance(named_parameters, Iterable):
            raise TypeError(
                f"named_parameters is {type(named_parameters).__name__}; it takes pairs of a name "
                "and a parameter, such as model.named_parameters()"
            )
        pairs = list(named_parameters)
        if any(not isinstance(pair, tuple) for pair in pairs):
            raise ValueError(
                "named_parameters should be a sequence of tuples (name, parameter), usually "
                "produced by model.named_parameters()."
            )
        duplicates = self.find_duplicates([name for name, _ in pairs])
        if duplicates:
            raise ValueError(
                "Parameter names in named_parameters must be unique. Found duplicates: "
                + ", ".join(duplicates)
            )
        names = {param: name for name, param in pairs}
        unnamed = sum(
            param not in names for group in self.param_groups for param in group["params"]
        )
        if unnamed:
            raise ValueError(
                "named_parameters was specified, but one or more model parameters were not "
                f"named: {unnamed} of the optimizer's. Python object ids must match, so give "
                "the parameters of the model that the optimizer was made for."
            )
        return names

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set[Any]:
        """Returns the elements that occur more than once."""
        return {element for element, count in collections.Counter(lst).items() if count > 1}

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes are added up before each step, from the next step on."""
        if whole_number("passes", passes) <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = passes
        if self._gradients is not None:
            self._gradients.set_passes(passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads the optimizer's state, and restarts the count of backward passes."""
        if self._gradients is not None:
            self._gradients.restart()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)
        # A scheduler that was made before wrapping sets options there.
        vars(self._original).update(state=self.state, param_groups=self.param_groups)

    @eager
    def synchronize(self) -> None:
        """Waits until all gradients are reduced, for example to clip them before step.

        A parameter without a gradient takes part with zeros. A step within skip_synchronize then
        uses the gradients as they are.
        """
        if self._gradients is not None:
            self._gradients.synchronize()
        self._note_use()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step does not reduce gradients, because synchronize has been called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @eager
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the gradients and takes the optimizer's step.

        With a closure, the gradients of each of its calls are reduced before the optimizer sees
        them.
        """
        if closure is not None and self._should_synchronize and self._gradients is not None:
            closure = self._synchronizing(closure, self._gradients)
        elif self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to "
                    "consider using optimizer.skip_synchronize() context if you use "
                    "optimizer.synchronize() in your code.",
                    stacklevel=user_stacklevel(),
                )
            self.synchronize()
        self._synchronized = False
        self._note_step()
        return super().step(closure)

    def _note_step(self) -> None:
        """Tells a scheduler that was made before wrapping that the optimizer has taken a step."""
        self._note_use()
        original = vars(self._original)
        original["_opt_called"] = True
        if "_step_count" in original:  # until PyTorch 2.3
            original["_step_count"] += 1

    def _note_use(self) -> None:
        if self._use is not None:
            self._use.has_begun = True

    def _step_later(self) -> tuple[Any, dict[torch.Tensor, torch.Tensor], Update]:
        """Starts a step whose parameters are updated later.

        Returns the result of the step, the tensors that are being reduced, by parameter, and the
        function that updates parameters. Call that once for each parameter, when its tensor has
        been reduced.
        """
        gradients = self._gradients
        assert gradients is not None, "a rank that does not reduce gradients defers no step"
        self._note_step()
        gradients.start()
        reduced = gradients.take()
        groups = copied_groups(self)

        def update(params: list[torch.Tensor]) -> None:
            grads = [param.grad for param in params]
            for param in params:
                param.grad = reduced.get(param)
            try:
                with partial_groups(self, groups, params):
                    super(Distributed, self).step()
            finally:
                for param, grad in zip(params, grads, strict=True):
                    param.grad = grad

        return None, reduced, update

    # PyTorch wraps the step of the optimizer's own class and runs its hooks there, so not here.
    step.hooked = True  # type: ignore[attr-defined]

    def _synchronizing(self, closure: Callable[[], Any], gradients: Gradients) -> Callable[[], Any]:
        if gradients.under_way():
            gradients.synchronize()

        def synchronized() -> Any:
            loss = closure()
            self.synchronize()
            return self._common(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return synchronized

    def _common(self, loss: Any) -> Any:
        """Returns the ranks' loss, reduced as the gradients are.

        LBFGS decides by it how far to go and when to stop, which ranks must do alike.
        """
        number = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        value = torch.tensor([number], dtype=torch.float64, device="cpu")
        op = Sum if self.op == Sum else Average
        allreduce_(value, name=self._loss_name, op=op, process_set=self.process_set)
        if not isinstance(loss, torch.Tensor):
            return value.item()
        return value[0].to(loss.device, loss.dtype)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients. Raises AssertionError while they are being reduced."""
        if self._gradients is not None and self._gradients.under_way():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can "
                "cause a race condition."
            )
        super().zero_grad(*args, **kwargs)

    def apply_updates(self) -> None:
        """Finishes the last step; there is nothing to do unless overlap_forward is given."""


def _bare(cls: Any) -> Any:
    """Returns an empty optimizer, which gets its state from a pickle."""
    return cls.__new__(cls)
