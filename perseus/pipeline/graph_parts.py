"""A graph of operations, cut into graphs that hand values on to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import fx

from perseus.pipeline.tracing import Graph, written

__all__ = ["Part", "graph_parts"]


@dataclass
class Part:
    """The graph of a stage. It takes and returns what the neighbours' return and take: one value
    as it is, several as a tuple.

    Attributes:
      uses: what its get_attr and call_module nodes name, and what that is called in the whole.
      writes: those of them that an operation changes in place.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    uses: dict[str, str] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)


def graph_parts(
    graph: Graph, begins: Sequence[int], name_of: Callable[[str, fx.Node], str]
) -> list[Part]:
    """Returns the parts of a graph; a part's values go as far as the last that uses them.

    Args:
      begins: the number of the first operation of each part after the first.
      name_of: gives the name to use for what a node needs of the module.
    """
    homes = {node: 0 for node in graph.module.graph.nodes if node.op == "placeholder"}
    for number, node in enumerate(graph.nodes):
        homes[node] = sum(begin <= number for begin in begins)
    last = len(begins)
    ends = {
        node: max((homes.get(user, last) for user in node.users), default=home)
        for node, home in homes.items()
    }
    return [_part(graph, homes, ends, number, last, name_of) for number in range(last + 1)]


def _part(
    graph: Graph,
    homes: dict[fx.Node, int],
    ends: dict[fx.Node, int],
    number: int,
    last: int,
    name_of: Callable[[str, fx.Node], str],
) -> Part:
    part = Part()
    new: dict[fx.Node, fx.Node] = {}
    for node, home in homes.items():
        is_input = node.op == "placeholder" and number == 0
        if is_input or home < number <= ends[node]:
            new[node] = part.graph.placeholder(node.name)
    attributes: dict[str, fx.Node] = {}

    def argument(given: fx.Node, user: fx.Node) -> fx.Node:
        if given.op != "get_attr":
            return new[given]
        name = name_of(str(given.target), user)
        if name not in attributes:
            attributes[name] = part.graph.get_attr(name)
            part.uses[name] = str(given.target)
        if given in written(user):
            part.writes.add(name)
        return attributes[name]

    if number == 0:
        for node in graph.module.graph.nodes:
            if node.op == "call_module":  # compares arguments with what the others rely on
                check = part.graph.node_copy(node, new.__getitem__)
                check.target = name_of(str(node.target), node)
                part.uses[check.target] = str(node.target)
    for node in graph.nodes:
        if homes[node] == number:
            new[node] = part.graph.node_copy(node, lambda given, user=node: argument(given, user))
    output = graph.module.graph.output_node()
    if number == last:
        part.graph.output(fx.map_arg(output.args[0], lambda given: argument(given, output)))
    else:
        handed = [new[node] for node, home in homes.items() if home <= number < ends[node]]
        part.graph.output(handed[0] if len(handed) == 1 else tuple(handed))
    return part
