"""A module's forward as a graph of operations, which torch.export records, for each of its modes.

torch.distributed.pipelining's own tracer stands on torch.export, too, but keeps one number of rows
and one mode, and its values skip stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from perseus.pipeline.errors import one_line
from perseus.pipeline.values import described

__all__ = ["Graph", "attribute", "operations", "trace", "written"]

_ADVICE = "give a list with a module for each stage instead"


@dataclass(frozen=True)
class Graph:
    """The graph that torch.export has made of a module in one mode.

    Attributes:
      module: has the graph, and what its get_attr nodes name besides parameters and buffers.
      structure, result: of the arguments and of what forward returns, as trees.
      nodes: the operations, in order.
      first: the number of the first that forward itself or a submodule does; those before it take
        sizes of arguments.
    """

    module: fx.GraphModule
    structure: Any
    result: Any
    nodes: list[fx.Node] = field(init=False)
    first: int = field(init=False)

    def __post_init__(self) -> None:
        nodes = list(operations(self.module.graph))
        first = next((number for number, node in enumerate(nodes) if "" in _paths(node)), 0)
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "first", first)

    def begin(self, path: str) -> int:
        """Returns the number of the first operation of a submodule. Raises ValueError if it has
        none, or one that cannot be told from others."""
        for number, node in enumerate(self.nodes):
            if path in _paths(node):
                return number
            inner = [part for block in self.blocks(node) for part in operations(block.graph)]
            if any(path in _paths(part) for part in inner):
                if path in _paths(inner[0]):
                    return number
                raise ValueError(
                    f"split point {path!r} lies in a block of torch.no_grad or torch.autocast, "
                    "which stays in one piece; it must be outside, or begin the block"
                )
        raise ValueError(f"split point {path!r} computes nothing in forward; it must be called")

    def blocks(self, node: fx.Node) -> Iterator[fx.GraphModule]:
        """Gives the graphs that a node runs as a whole, such as that of a torch.no_grad."""
        for given in node.all_input_nodes:
            if given.op == "get_attr":
                value = attribute(self.module, str(given.target))
                if isinstance(value, fx.GraphModule):
                    yield value

    def parted_by(self, begin: int) -> str | None:
        """Returns an operation that would no longer change a value, if what begins at an operation
        were another stage: one that works in place, on memory that several values share which go
        there. None if there is none."""
        places = {node: -1 for node in self.module.graph.nodes if node.op == "placeholder"}
        places.update((node, number) for number, node in enumerate(self.nodes))
        shared: set[int] = set()
        seen: set[int] = set()
        for node, place in places.items():
            if place < begin and any(places.get(user, begin) >= begin for user in node.users):
                memory = set(_memory(node))
                shared |= memory & seen
                seen |= memory
        for node in self.nodes[begin:]:
            inner = [part for block in self.blocks(node) for part in operations(block.graph)]
            for part in (node, *inner):
                if any(shared.intersection(_memory(given)) for given in written(part)):
                    return str(part.target)
        return None


def trace(module: torch.nn.Module, sample: Any) -> dict[bool, Graph]:
    """Returns a module's graphs, by whether it is training.

    Nothing is computed, and modules' modes are as before afterwards. A module that is training may
    have parts that are not.

    Args:
      sample: the input of a micro-batch; a tuple has the arguments. Sizes of its tensors may differ
        later, unless forward needs those of the sample.

    Raises ValueError with the reason if torch.export cannot.
    """
    modes = {part: part.training for part in module.modules()}
    arguments = sample if isinstance(sample, tuple) else (sample,)
    try:
        if not module.training:
            module.train()
        training = _exported(module, arguments)
        module.eval()
        return {True: training, False: _exported(module, arguments)}
    finally:
        for part, mode in modes.items():
            part.training = mode


def _exported(module: torch.nn.Module, arguments: tuple[Any, ...]) -> Graph:
    kind = type(module).__name__
    too_old = (
        f"PyTorch {torch.__version__} cannot trace {kind} so that it can be cut; take a newer one, "
        f"or {_ADVICE}"
    )
    automatic = getattr(getattr(torch.export, "Dim", None), "AUTO", None)
    if automatic is None:
        raise ValueError(too_old)

    def sizes(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor)
        return dict.fromkeys(range(leaf.dim()), automatic) if is_tensor else None

    try:
        program = torch.export.export(
            module, arguments, dynamic_shapes=pytree.tree_map(sizes, arguments), strict=False
        )
    except Exception as error:  # the module's own code runs
        raise ValueError(
            f"torch.export cannot trace {kind} with the sample {described(arguments)}: "
            f"{one_line(error)}. To be cut, a module must be one that it takes; {_ADVICE}"
        ) from error
    if program.graph_signature.buffers_to_mutate:  # written at the graph's end, not where they are
        raise ValueError(too_old)
    return Graph(program.module(), program.call_spec.in_spec, program.call_spec.out_spec)


def operations(graph: fx.Graph) -> Iterator[fx.Node]:
    """Gives the nodes that compute."""
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            yield node


def attribute(module: torch.nn.Module, path: str) -> Any:
    """Returns what a get_attr node names."""
    parent, _, name = path.rpartition(".")
    return getattr(module.get_submodule(parent), name)


def written(node: fx.Node) -> list[fx.Node]:
    """Returns the arguments that an operation changes in place.

    Schemas of normalisations do not say that they change running statistics.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    found = []
    for number, argument in enumerate(schema.arguments):
        given = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
        changes = argument.alias_info is not None and argument.alias_info.is_write
        if changes or argument.name in ("running_mean", "running_var"):
            parts = given if isinstance(given, (tuple, list)) else [given]
            found += [part for part in parts if isinstance(part, fx.Node)]
    return found


def _paths(node: fx.Node) -> set[str]:
    """Returns the paths of the modules whose forward made a node. A module's second call is marked
    with "@1"."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return {str(path).partition("@")[0] for path, _ in stack}


def _memory(node: fx.Node) -> list[int]:
    """Returns what tells apart the memory that a node's tensors are in."""
    return [
        tensor.untyped_storage()._cdata
        for tensor in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    ]
