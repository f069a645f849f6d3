"""A module that torch.export has traced, cut into stages.

A stage takes what the one before hands on, computes its operations, and hands on all that later
stages need. Its parameters are those of the module, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from perseus.pipeline.graph_parts import Part, graph_parts
from perseus.pipeline.tracing import Graph, attribute, operations, trace
from perseus.pipeline.values import described

__all__ = ["Traced", "TracedStage"]


class TracedStage(torch.nn.Module):  # type: ignore[misc]  # torch is optional
    """Some of a module's operations. The mode of the stage, not of modules in it, chooses those of
    training or of evaluation."""

    def __init__(self) -> None:
        super().__init__()
        #: generated functions, which take the stage in place of `self`, by mode
        self._forwards: dict[bool, Callable[..., Any]] = {}
        #: the tree of forward's arguments, in the first stage, and what they were when traced
        self._takes: tuple[Any, str] | None = None
        #: the trees of what forward returns, in the last stage, by mode
        self._results: dict[bool, Any] = {}

    def forward(self, *values: Any) -> Any:
        if self._takes is not None:
            structure, sample = self._takes
            leaves, given = pytree.tree_flatten((values, {}))
            if given != structure:
                raise TypeError(f"x must be made like the sample, {sample}")
            values = tuple(leaves)
        found = self._forwards[self.training](self, *values)
        if self._results:
            return pytree.tree_unflatten(found, self._results[self.training])
        return found

    def hold(self, path: str, value: Any, is_persistent: bool) -> None:
        """Takes what its operations use, under its name in the module."""
        owner: torch.nn.Module = self
        *parents, name = path.split(".")
        for parent in parents:
            if parent not in owner._modules:
                owner.add_module(parent, torch.nn.Module())
            owner = owner.get_submodule(parent)
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            owner.register_buffer(name, value, is_persistent)
        else:
            setattr(owner, name, value)


class Traced:
    """A module to be cut before the first operations of submodules.

    Args:
      sample: see trace, which this raises the errors of.
      device: where the stages will be; None: where the module is.
    """

    def __init__(self, module: torch.nn.Module, sample: Any, device: torch.device | None) -> None:
        self._module = module
        self._sample = described(sample)
        self._device = device
        self._graphs = trace(module, sample)
        self._tensors: dict[str, torch.Tensor] = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        self._names: dict[int, list[str]] = {}
        for name, tensor in self._tensors.items():
            self._names.setdefault(id(tensor), []).append(name)

    def candidates(self) -> list[str]:
        """Returns the submodules before which the module can be cut, in the order of forward.

        These are its children; children of a ModuleList or Sequential stand for it.
        """
        begins: dict[tuple[int, ...], str] = {}
        for path in _children(self._module, ""):
            try:
                at = tuple(begin for (begin,) in self._begins((path,)).values())
            except ValueError:
                continue
            begins.setdefault(at, path)
        return [begins[at] for at in sorted(begins)]

    def cut(self, points: Sequence[Any]) -> list[TracedStage]:
        """Returns the stages, of which all but the first begin at submodules with these paths.

        Raises ValueError if they are none, or not in order, or a cut there would change results.
        """
        begins = self._begins(points)
        stages = [TracedStage() for _ in range(len(points) + 1)]
        writers: dict[str, set[int]] = {}
        for mode, graph in self._graphs.items():
            prefix = f"traced.{'training' if mode else 'evaluation'}_graph."
            parts = graph_parts(graph, begins[mode], self._namer(prefix))
            for number, (stage, part) in enumerate(zip(stages, parts, strict=True)):
                self._fill(stage, mode, graph, part)
                for name in part.writes:
                    writers.setdefault(name, set()).add(number)
        stages[0]._takes = self._graphs[True].structure, self._sample
        stages[-1]._results = {mode: graph.result for mode, graph in self._graphs.items()}
        self._share_out(stages, writers)
        for stage in stages:
            stage.training = self._module.training
        return stages

    def _begins(self, points: Sequence[Any]) -> dict[bool, list[int]]:
        """Returns, by mode, the numbers of the operations at which stages after the first begin."""
        found = {}
        paths = {path for path, _ in self._module.named_modules() if path}
        for path in points:
            if path not in paths:
                raise ValueError(
                    f"split point {path!r} is no submodule of {type(self._module).__name__}; it "
                    'must be the path of one, such as "layers.2"'
                )
        for mode, graph in self._graphs.items():
            begins = [graph.begin(path) for path in points]
            if any(after <= before for before, after in pairwise([graph.first, *begins])):
                raise ValueError(
                    f"split is {list(points)}; it must name the submodules at which stages after "
                    "the first begin, in the order in which forward calls them, so that each stage "
                    "has a part"
                )
            for path, begin in zip(points, begins, strict=True):
                if operation := graph.parted_by(begin):
                    raise ValueError(
                        f"split point {path!r} parts values that share memory, of which "
                        f"{operation} changes one in place afterwards; cut at another submodule, "
                        "or do not work in place"
                    )
            found[mode] = begins
        return found

    def _namer(self, prefix: str) -> Callable[[str, fx.Node], str]:
        """Returns a function that names what a node uses: a parameter that has several names by
        that in the submodule that uses it, what is not the module's own with the prefix."""

        def name_of(path: str, user: fx.Node) -> str:
            if path not in self._tensors:
                return prefix + path
            stack = [where for where, _ in (user.meta.get("nn_module_stack") or {}).values()]
            names = self._names[id(self._tensors[path])]
            return next((one for one in names if one.rpartition(".")[0] in stack[-1:]), path)

        return name_of

    def _fill(self, stage: TracedStage, mode: bool, graph: Graph, part: Part) -> None:
        """Gives a stage what it computes in a mode, and what that uses."""
        persistent = self._module.state_dict()
        for name, path in part.uses.items():
            value = self._tensors.get(name)
            if value is None:
                value = attribute(graph.module, path)
                if isinstance(value, fx.GraphModule):
                    self._move(value.graph)
                    value.recompile()
            stage.hold(name, value, name in persistent)
        self._move(part.graph)
        stage._forwards[mode] = type(fx.GraphModule(stage, part.graph)).forward

    def _move(self, graph: fx.Graph) -> None:
        """Has operations make tensors on the stages' device in place of the sample's."""
        if self._device is None:
            return
        for node in operations(graph):
            node.args, node.kwargs = fx.node.map_aggregate(
                (node.args, node.kwargs),
                lambda given: self._device if isinstance(given, torch.device) else given,
            )

    def _share_out(self, stages: Sequence[TracedStage], writers: dict[str, set[int]]) -> None:
        """Gives the first stage what none uses, and a stage all names of what it has."""
        held = [{id(one) for one in _tensors(stage).values()} for stage in stages]
        for name, tensor in self._tensors.items():
            homes = [number for number, own in enumerate(held) if id(tensor) in own] or [0]
            if len(homes) > 1 and any(one in writers for one in self._names[id(tensor)]):
                raise ValueError(
                    f"{name} is changed by stage {homes[0]} and used by stage {homes[1]}, which "
                    "would not see that; split so that one stage has both"
                )
            if all(name not in _tensors(stages[number]) for number in homes):
                stages[homes[0]].hold(name, tensor, name in self._module.state_dict())


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _children(module: torch.nn.Module, prefix: str) -> Iterator[str]:
    for name, child in module.named_children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)):
            yield from _children(child, f"{prefix}{name}.")
        else:
            yield prefix + name
