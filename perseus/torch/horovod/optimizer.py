"""DistributedOptimizer: any PyTorch optimizer, with gradients reduced over the ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from perseus.common.process_sets import ProcessSet, global_process_set
from perseus.common.reduce_ops import Adasum, Average, checked_op
from perseus.torch.horovod.compression import Compression, Compressor, checked_compression
from perseus.torch.horovod.forward_overlap import (
    PutOffUpdates,
    can_put_off,
    options_of,
    partial_groups,
)
from perseus.torch.horovod.functions import broadcast_object
from perseus.torch.horovod.gradients import Gradients
from perseus.torch.horovod.parameter_groups import int_groups, listed_groups
from perseus.torch.horovod.tensors import set_id
from perseus_core import size
from perseus_core.arguments import whole_number

#: The rest of a step, for some of the parameters.
Update = Callable[[list[torch.Tensor]], None]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    overlap_forward: bool = False,
) -> torch.optim.Optimizer:
    """The optimizer, with gradients that are reduced over the ranks before each step.

    Each gradient is handed over as backward produces it, and moves while backward goes on; those
    of the parameters that come first move first. The result is an instance of the optimizer's own
    class and shares its param_groups and state; use it in the optimizer's place.

    Args:
      optimizer: computes the updates.
      named_parameters: pairs such as model.named_parameters(); ranks match gradients by name.
        Without them, by the position in the optimizer's groups.
      compression: what a gradient is turned into before it is reduced.
      backward_passes_per_step: backward passes that are added up before gradients are reduced.
      op: Average or Sum (or Min, Max, Product), of gradients; or Adasum, of what the optimizer
        makes of them: each rank steps by itself, and the differences that this makes to the
        parameters are combined by Adasum.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum, and by
        size / it after.
      num_groups: deprecated form of an int for `groups`.
      groups: gradients that are reduced together: the number of groups to split the parameters
        into, or lists of parameters; others stay single.
      sparse_as_dense: reduces sparse gradients as dense ones.
      process_set: the ranks that take part; on others the optimizer stays local.
      overlap_forward: step does not wait for the gradients. Each parameter is updated when the next
        forward pass needs it, or whatever else looks at it, with the same numbers as without. For
        optimizers that treat every parameter for itself, as all of torch.optim's but LBFGS do.

    Raises ValueError for arguments that contradict each other.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"optimizer is {type(optimizer).__name__}; it takes a torch.optim.Optimizer"
        )
    checked_compression(compression)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    op = checked_op(op)
    if whole_number("backward_passes_per_step", backward_passes_per_step) <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups != 0:
        warnings.warn(
            "num_groups is deprecated; give groups instead", DeprecationWarning, stacklevel=2
        )
        groups = num_groups if groups is None else groups
    if (
        groups is not None
        and not isinstance(groups, (list, tuple))
        and not (isinstance(groups, int) and groups > 0)
    ):
        raise ValueError("groups must be a positive int or a list of lists of tensors")

    if overlap_forward and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("overlap_forward updates one parameter after the other; LBFGS cannot")
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    set_id(process_set)

    ours: type = _Distributed if op != Adasum or size() == 1 else _DistributedDeltas
    if overlap_forward:
        ours = type(ours.__name__, (_UpdatesInForward, ours), {})
    cls = type(
        type(optimizer).__name__,
        (ours, type(optimizer)),
        {"__module__": __name__, "__doc__": type(optimizer).__doc__},
    )
    distributed = cls.__new__(cls)
    # Sharing everything keeps momenta, hooks and schedulers, and asks nothing of the constructor.
    # A scheduler leaves a wrapped `step` on the instance, bound to the optimizer as it was.
    distributed.__dict__.update(
        (key, value) for key, value in vars(optimizer).items() if key != "step"
    )
    distributed._distribute(
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        groups,
        sparse_as_dense,
        process_set,
    )
    return distributed


class _Distributed:
    """What DistributedOptimizer puts in front of the optimizer's class."""

    _reduces_in_backward = True

    def _distribute(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: int | Sequence[Sequence[torch.Tensor]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.op = op
        self.backward_passes_per_step = backward_passes_per_step
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self._parameter_names = self._names_of(named_parameters)
        self._synchronized = False
        self._should_synchronize = True
        self._gradients: Gradients | None = None
        if not (process_set.included() and size() > 1):
            return
        params = [
            param for group in self.param_groups for param in group["params"] if param.requires_grad
        ]
        if isinstance(groups, int):
            root = process_set.ranks[0] if process_set.ranks else 0
            mine = [self._parameter_names[param] for param in params]
            order = broadcast_object(mine, root, process_set=process_set)
            grouping = int_groups(params, self._parameter_names, order, groups)
        elif groups is not None:
            grouping = listed_groups(params, groups)
        else:
            grouping = []
        self._gradients = Gradients(
            params,
            self._parameter_names,
            grouping,
            compression,
            backward_passes_per_step,
            op,
            gradient_predivide_factor,
            sparse_as_dense,
            process_set,
            self._reduces_in_backward,
        )

    def _names_of(
        self, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
    ) -> dict[torch.Tensor, str]:
        if named_parameters is None:
            return {
                param: f"allreduce.noname.{i}.{j}"
                for i, group in enumerate(self.param_groups)
                for j, param in enumerate(group["params"])
            }
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
        """The elements that are there more than once."""
        seen: set[Any] = set()
        return {element for element in lst if element in seen or seen.add(element)}

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes are added up, from the next step on."""
        if whole_number("passes", passes) <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = passes
        if self._gradients is not None:
            self._gradients.set_passes(passes)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads the optimizer's state; what backward passes there were does not count any more."""
        if self._gradients is not None:
            self._gradients.restart()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, such as to clip them before step.

        Every parameter takes part: one without a gradient with zeros. step within
        skip_synchronize then uses the gradients as they are.
        """
        if self._gradients is not None:
            self._gradients.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, step does not reduce gradients: synchronize has been called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the gradients and takes the optimizer's step.

        With a closure, the gradients of each of its calls are reduced before the optimizer sees
        them.
        """
        if closure is not None and self._should_synchronize and self._gradients is not None:
            closure = self._synchronizing(closure)
        elif self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). This can cause training slowdown. You may want to "
                    "consider using optimizer.skip_synchronize() context if you use "
                    "optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    def _step_later(self) -> tuple[Any, dict[torch.Tensor, torch.Tensor], Update]:
        """Begins a step: what it returns, the tensors that are being reduced, and the rest of it.

        The rest is called for each parameter once, when its tensor has been reduced.
        """
        self._gradients.start()
        reduced = {param: param.grad for param in self._gradients.params()}
        options = options_of(self)

        def update(params: list[torch.Tensor]) -> None:
            grads = [param.grad for param in params]
            for param in params:
                param.grad = reduced[param]
            with partial_groups(self, options, params):
                super(_Distributed, self).step()
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad

        return None, reduced, update

    # PyTorch runs its step hooks in what it wraps, which is the step of the optimizer's own class.
    step.hooked = True  # type: ignore[attr-defined]

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        if self._gradients.under_way():
            self._gradients.synchronize()

        def synchronized() -> Any:
            loss = closure()
            self.synchronize()
            return loss

        return synchronized

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients. AssertionError while they are being reduced."""
        if self._gradients is not None and self._gradients.under_way():
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can "
                "cause a race condition."
            )
        super().zero_grad(*args, **kwargs)

    def apply_updates(self) -> None:
        """Does what is left of the last step; there is nothing unless overlap_forward is given."""


class _DistributedDeltas(_Distributed):
    """For Adasum, which adds up what the ranks' steps have changed, not their gradients.

    As Horovod's, with these differences: what is reduced comes about in step, not while backward
    runs, so that gradients can be clipped or unscaled before it; and any process set will do.
    """

    _reduces_in_backward = False

    def synchronize(self) -> None:
        """Does nothing: gradients stay each rank's own."""

    def skip_synchronize(self) -> Any:
        """AssertionError: a step without its reduction would leave the ranks apart."""
        raise AssertionError("skip_synchronize is not supported with Adasum: step reduces")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step and combines what it changed with the other ranks' changes."""
        if self._gradients is None:
            return super().step(closure)
        result, deltas, update = self._step_later(closure)
        self._gradients.finish(self._gradients.buckets)
        update(list(deltas))
        return result

    step.hooked = True  # type: ignore[attr-defined]

    def _step_later(
        self, closure: Callable[[], Any] | None = None
    ) -> tuple[Any, dict[torch.Tensor, torch.Tensor], Update]:
        params = self._gradients.params()
        before = [param.detach().clone() for param in params]
        result = super(_Distributed, self).step(closure)
        deltas = {}
        grads = [param.grad for param in params]
        # Until the ranks' changes are there, the parameters are as they were.
        for param, start in zip(params, before, strict=True):
            deltas[param] = param.grad = param.detach() - start
            param.detach().copy_(start)
        self._gradients.start()
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad

        def update(params: list[torch.Tensor]) -> None:
            for param in params:
                param.detach().add_(deltas[param])

        return result, deltas, update


class _UpdatesInForward:
    """What overlap_forward puts before that: see forward_overlap."""

    def _distribute(self, *args: Any) -> None:
        self._updates: PutOffUpdates | None = None
        super()._distribute(*args)  # type: ignore[misc]
        if self._gradients is not None:
            self._updates = PutOffUpdates(self._gradients)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the optimizer's step; parameters are updated when they are needed.

        As without overlap_forward with a closure, within skip_synchronize, after synchronize, with
        step hooks, and with torch.compile in use.
        """
        self.apply_updates()
        is_reduced = self._synchronized or not self._should_synchronize
        if closure is not None or is_reduced or self._updates is None or not can_put_off(self):
            return super().step(closure)  # type: ignore[misc]
        result, reduced, update = self._step_later()
        self._updates.put_off(reduced, update)
        return result

    step.hooked = True  # type: ignore[attr-defined]

    def apply_updates(self) -> None:
        """Does what is left of the last step, and waits for the gradients that it needs."""
        if self._updates is not None:
            self._updates.apply()

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, such as to clip them before step."""
        self.apply_updates()
        super().synchronize()  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients; those that the last step still needs are set to None."""
        if self._updates is not None and self._updates.are_under_way():
            self._updates.keep_gradients()
            super(_Distributed, self).zero_grad(*args, **kwargs)
        else:
            super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads the optimizer's state; what backward passes there were does not count any more."""
        self.apply_updates()
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def register_step_pre_hook(self, hook: Any) -> Any:
        """As the optimizer's own; the hook does not see what is left of the last step."""
        self.apply_updates()
        return super().register_step_pre_hook(hook)  # type: ignore[misc]

    def register_step_post_hook(self, hook: Any) -> Any:
        """As the optimizer's own; the hook does not see what is left of the last step."""
        self.apply_updates()
        return super().register_step_post_hook(hook)  # type: ignore[misc]

    @property
    def state(self) -> Any:
        """The optimizer's state by parameter, with nothing left of the last step."""
        if self._updates is not None and not self._updates.is_settling:
            self._updates.apply()
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> None:
        self.__dict__["state"] = value
