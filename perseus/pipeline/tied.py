"""Weights that several stages share, such as those of an embedding and of the layer that ends it.

Each stage has a copy. In a step, a stand-in with the same memory takes the copy's place, so that
its gradient is known apart: hooks of an optimizer must not see it before the stages have added up
theirs. At the end each rank sends its part to the others, and all add them in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from perseus.pipeline.exchange import Exchange
from perseus.pipeline.routes import Routes

__all__ = ["Entry", "TiedWeights", "shared_parameters"]

#: A stage, and the name of a parameter in its module.
Entry = tuple[int, str]


def shared_parameters(modules: Mapping[int, torch.nn.Module]) -> list[list[Entry]]:
    """Returns the parameters that are the same object in several stages."""
    found: dict[int, list[Entry]] = {}
    for stage, module in modules.items():
        for name, parameter in module.named_parameters():
            found.setdefault(id(parameter), []).append((stage, name))
    return [entries for entries in found.values() if len(entries) > 1]


@dataclass
class _Own:
    """A tied parameter on this rank."""

    number: int  # of the entry, over all groups
    group: int
    parameter: torch.nn.Parameter
    places: list[tuple[torch.nn.Module, str]]
    stand_in: torch.nn.Parameter


class TiedWeights:
    """Only the thread that calls Pipeline.step uses it.

    Args:
      place: of this rank in the pipeline.
      modules: of the stages on this rank, by stage.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Entry]],
        routes: Routes,
        place: int,
        modules: Mapping[int, torch.nn.Module],
    ) -> None:
        self._groups = groups
        self._routes = routes
        self._place = place
        self._first = [sum(map(len, groups[:number])) for number in range(len(groups))]
        self._own = [
            self._found(number, index, modules[stage], name)
            for number, group in enumerate(groups)
            for index, (stage, name) in enumerate(group)
            if stage in modules
        ]

    @staticmethod
    def messages(groups: Sequence[Sequence[Entry]], ranks: int) -> int:
        """Returns how many tags a step needs for them."""
        return sum(map(len, groups)) * ranks

    def _found(self, group: int, index: int, module: torch.nn.Module, name: str) -> _Own:
        parameter = module.get_parameter(name)
        places = [
            (part, own)
            for part in module.modules()
            for own, one in part._parameters.items()
            if one is parameter
        ]
        stand_in = torch.nn.Parameter(parameter.detach(), parameter.requires_grad)
        return _Own(self._first[group] + index, group, parameter, places, stand_in)

    def routes(self, step: int) -> tuple[dict[int, int], dict[int, int]]:
        """Returns what this rank sends and receives at the end of a step: by tag, the other
        rank."""
        sends, receives = {}, {}
        for own in self._own:
            for place in self._others(own.group):
                sends[self._tag(step, own.number, place)] = self._routes.ranks[place]
        for number, stage in self._elsewhere():
            tag = self._tag(step, number, self._place)
            receives[tag] = self._routes.rank_of(stage)
        return sends, receives

    def begin(self) -> None:
        """Puts the stand-ins in place for a step."""
        for own in self._own:
            own.stand_in.requires_grad_(own.parameter.requires_grad)
            own.stand_in.data = own.parameter.data  # load_state_dict(assign=True) and the like
            own.stand_in.grad = None
            for part, name in own.places:
                part._parameters[name] = own.stand_in

    def end(self) -> None:
        """Puts the parameters back."""
        for own in self._own:
            own.stand_in.grad = None
            for part, name in own.places:
                part._parameters[name] = own.parameter

    def sum_gradients(self, exchange: Exchange, step: int) -> None:
        """Adds the sum of all stages' gradients to those of the parameters; hooks run."""
        parts = {
            own.number: torch.zeros_like(own.parameter)
            if own.stand_in.grad is None
            else own.stand_in.grad
            for own in self._own
        }
        self._swap(exchange, step, parts)
        done = set()
        for own in self._own:
            if own.parameter in done or not own.parameter.requires_grad:
                continue
            done.add(own.parameter)
            first = self._first[own.group]
            numbers = range(first, first + len(self._groups[own.group]))
            total = parts[first].clone()
            for number in numbers[1:]:
                total += parts[number].to(total.device)
            torch.autograd.backward(own.parameter.view_as(own.parameter), total)

    def make_equal(self, exchange: Exchange, step: int) -> None:
        """Gives all copies the values of the first stage that has the weight."""
        parts = {own.number: own.parameter.detach() for own in self._own}
        self._swap(exchange, step, parts)
        with torch.no_grad():
            for own in self._own:
                first = parts[self._first[own.group]]
                if first is not own.parameter:
                    own.parameter.copy_(first)

    def _swap(self, exchange: Exchange, step: int, parts: dict[int, torch.Tensor]) -> None:
        """Sends this rank's parts, and adds those of the others to them, by their numbers."""
        for own in self._own:
            for place in self._others(own.group):
                message = parts[own.number].detach().cpu().contiguous()
                exchange.send(self._tag(step, own.number, place), message, 1)
        for number, _ in self._elsewhere():
            parts[number] = exchange.take(self._tag(step, number, self._place))
        exchange.finish()

    def _others(self, group: int) -> list[int]:
        """Returns the other places of the pipeline that have a part of a group."""
        ranks = len(self._routes.ranks)
        places = {stage % ranks for stage, _ in self._groups[group]}
        return sorted(places - {self._place})

    def _elsewhere(self) -> Iterable[tuple[int, int]]:
        """Gives number and stage of the parts that other ranks have of this one's groups."""
        ranks = len(self._routes.ranks)
        for group in sorted({own.group for own in self._own}):
            for index, (stage, _) in enumerate(self._groups[group]):
                if stage % ranks != self._place:
                    yield self._first[group] + index, stage

    def _tag(self, step: int, number: int, place: int) -> int:
        return self._routes.other(step, number * len(self._routes.ranks) + place)
