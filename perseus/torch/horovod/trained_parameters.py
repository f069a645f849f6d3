"""Which parameters of an optimizer are trained, and the names by which ranks match them."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from perseus.torch.horovod.name_check import OPTIMIZER, Names


class Parameters:
    """Parameters whose gradients are reduced; always the same ones.

    Args:
      params: in the order in which the forward pass needs them.
      names: of these parameters, and maybe of others.
    """

    #: whether have_changed() may ever return True
    may_change = False

    def __init__(self, params: Sequence[torch.Tensor], names: Mapping[torch.Tensor, str]) -> None:
        #: the parameters that are reduced
        self.params = list(params)
        #: the names by which ranks match them
        self.names = dict(names)
        #: the names of the operations that compare names: in general, and the first time
        self.check = self.first_check = f"names.with.{min(map(self.names.__getitem__, params))}"

    def have_changed(self) -> bool:
        """Returns whether there are parameters to reduce that are not reduced yet."""
        return False

    def wanted(self) -> list[torch.Tensor]:
        """Returns the parameters that should be reduced now, in order."""
        return self.params

    def adopt(self) -> list[torch.Tensor]:
        """Makes the wanted parameters the ones that are reduced; returns those that are new."""
        return []

    def positions(self) -> dict[torch.Tensor, int]:
        """Returns the place of each parameter in the order in which forward needs them."""
        return {param: i for i, param in enumerate(self.params)}

    def described(self, params: Iterable[torch.Tensor]) -> Names:
        """Returns what ranks must have in common to reduce these parameters."""
        return Names(self.names[param] for param in params)


class TrainedParameters(Parameters):
    """The parameters of one optimizer that are trained.

    A parameter is trained if it requires gradients or has one, and stays trained while the
    optimizer has it. Parameters may be added to the optimizer and begin to require gradients at any
    time: have_changed() notices it, and adopt() makes them trained. Ranks must agree in between.

    Args:
      optimizer: this object does not keep it alive.
      names: the user's names of parameters; None for names by position.
      number: how many optimizers without names of the user have been made before this one.

    Names by position are allreduce.noname.<group>.<position>, with the optimizer's number before
    the group if it is not the first. A parameter that was added to an optimizer with names of the
    user, and is not among these, is called param_groups.<group>.<position>.
    """

    may_change = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Mapping[torch.Tensor, str] | None,
        number: int = 0,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._by_position = "param_groups"
        self._made_as: str | None = None
        if names is None:
            self._by_position = f"allreduce.noname.{number}" if number else "allreduce.noname"
            self._made_as = f"{OPTIMIZER}{number}: {type(optimizer).__name__}"
        self.names = dict(names or {})
        self._given = set(self.names)
        self.params = []
        # The parameters in each group, to notice changes.
        self._layout: list[list[torch.Tensor]] = []
        # The parameters in the groups that are not reduced.
        self._others: list[torch.Tensor] = []
        self._look()
        self.adopt()
        # Some ranks may have frozen a parameter, so the name is that of one in the groups.
        self.check = f"names.with.{min(map(self.names.__getitem__, self._all()), default='none')}"
        self.first_check = "names.noname" if names is None else self.check

    def have_changed(self) -> bool:
        # This is called in each step, so it avoids function calls for each parameter.
        layout, groups = self._layout, self._groups()
        if len(groups) != len(layout) or not all(
            len(known) == len(group["params"]) and all(map(operator.is_, known, group["params"]))
            for known, group in zip(layout, groups, strict=True)
        ):
            self._look()
        return any(param.requires_grad or param.grad is not None for param in self._others)

    def wanted(self) -> list[torch.Tensor]:
        reduced = set(self.params)
        return [param for param in self._all() if param in reduced or _is_trained(param)]

    def adopt(self) -> list[torch.Tensor]:
        before = set(self.params)
        self.params = self.wanted()
        present = set(self._all())
        for param in [one for one in self.names if one not in self._given | present]:
            del self.names[param]
        self._look()
        return [param for param in self.params if param not in before]

    def described(self, params: Iterable[torch.Tensor]) -> Names:
        if self._made_as is None:
            return super().described(params)
        # Names by position say little.
        return Names(
            [self._made_as, *(f"{self.names[param]}: {_shape_of(param)}" for param in params)]
        )

    def positions(self) -> dict[torch.Tensor, int]:
        return {param: i for i, param in enumerate(self._all())}

    def _look(self) -> None:
        """Looks at all parameters that the optimizer has, and names the ones without a name."""
        reduced = set(self.params)
        self._layout = [list(group["params"]) for group in self._groups()]
        self._others = [param for param in self._all() if param not in reduced]
        taken = set(self.names.values())
        for i, group in enumerate(self._groups()):
            for j, param in enumerate(group["params"]):
                if param not in self.names:
                    name = f"{self._by_position}.{i}.{j}"
                    # Another parameter was at this position before.
                    while name in taken:
                        name += ".again"
                    taken.add(name)
                    self.names[param] = name

    def _groups(self) -> list[dict[str, list[torch.Tensor]]]:
        optimizer = self._optimizer()
        assert optimizer is not None, "an optimizer that is gone reduces no gradients"
        groups: list[dict[str, list[torch.Tensor]]] = optimizer.param_groups
        return groups

    def _all(self) -> Iterator[torch.Tensor]:
        for group in self._groups():
            yield from group["params"]


def _shape_of(param: torch.Tensor) -> str:
    return f"{str(param.dtype).removeprefix('torch.')}{list(param.shape)}"


def _is_trained(param: torch.Tensor) -> bool:
    return param.requires_grad or param.grad is not None
