"""The backward pass of a stage in two parts: the gradient of its input, and those of its weights.

Autograd's graph is cut at the nodes through which both must go: those on the way from the output to
the input which also have a way to weights that goes elsewhere, such as a matrix product. The first
part notes what gradient arrives at each of them. The second begins there, so it repeats nothing.
Weights are all other leaves of the graph, so also those of a loss or of a closure. Those for which
that would count a path twice, since a stage uses them at several nodes that follow each other,
begin at the output. An autograd.Function written in Python is not told which
part is wanted, and does both each time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

__all__ = ["SplitBackward", "begins_at_nodes"]


@functools.cache
def begins_at_nodes() -> bool:
    """Returns whether this PyTorch lets backward begin within the graph; old versions do not."""
    leaf = torch.ones(1, requires_grad=True)
    node = (leaf * 2).grad_fn
    try:
        torch.autograd.backward((GradientEdge(node, 0),), (torch.ones(1),), inputs=(leaf,))
    except (RuntimeError, TypeError, AttributeError):
        return False
    return bool(leaf.grad == 2)


class SplitBackward:
    """The two parts for one micro-batch. Call input_gradients, then weight_gradients, once each."""

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        self._outputs = list(outputs)
        self._gradients = list(gradients)
        self._inputs = list(inputs)
        self._weights: list[torch.Tensor] | None = None  # all that there are
        self._at_nodes: dict[Any, tuple[torch.Tensor | None, ...]] = {}
        self._weights_of: dict[Any, list[torch.Tensor]] = {}

    def input_gradients(self) -> list[torch.Tensor | None]:
        """Returns the gradients of the inputs; None for an input that has none."""
        if not self._inputs or not self._outputs:
            return [None] * len(self._inputs)
        hooks = []
        order = _children_first(
            output.grad_fn for output in self._outputs if output.grad_fn is not None
        )
        leaves = {_accumulator(tensor) for tensor in self._inputs}
        by_node = {
            node: node.variable
            for node in order
            if hasattr(node, "variable") and node not in leaves
        }
        self._weights = list(by_node.values())
        if begins_at_nodes():
            self._find_nodes(order, leaves, by_node)
            hooks = [node.register_prehook(self._noting(node)) for node in self._weights_of]
        try:
            return list(
                torch.autograd.grad(
                    self._outputs,
                    self._inputs,
                    self._gradients,
                    retain_graph=True,
                    allow_unused=True,
                )
            )
        finally:
            for hook in hooks:
                hook.remove()

    def weight_gradients(self) -> None:
        """Adds the gradients of the weights to theirs."""
        done: set[torch.Tensor] = set()
        for node, arrived in self._at_nodes.items():
            weights = self._weights_of[node]
            edges = [
                (GradientEdge(node, index), gradient)
                for index, gradient in enumerate(arrived)
                if gradient is not None
            ]
            if edges and weights:
                begins, gradients = zip(*edges, strict=True)
                torch.autograd.backward(begins, gradients, retain_graph=True, inputs=weights)
            done |= set(weights)
        if self._weights is None:
            if self._outputs:
                torch.autograd.backward(self._outputs, self._gradients)
        elif others := [weight for weight in self._weights if weight not in done]:
            torch.autograd.backward(self._outputs, self._gradients, inputs=others)
        self._at_nodes.clear()
        self._outputs.clear()

    def _noting(self, node: Any) -> Any:
        def note(gradients: tuple[torch.Tensor | None, ...]) -> None:
            self._at_nodes[node] = gradients

        return note

    def _find_nodes(
        self, order: Iterable[Any], leaves: set[Any], by_node: Mapping[Any, torch.Tensor]
    ) -> None:
        """Finds the nodes to cut at, and the weights whose second part begins at each.

        Args:
          order: all nodes, each after those that it leads to.
          leaves: of the inputs.
          by_node: the weight of each other leaf.
        """
        on_the_way: set[Any] = set()
        below: dict[Any, frozenset[Any]] = {}  # the weights below the other nodes
        directly: dict[Any, list[Any]] = {}
        for node in order:
            children = [child for child, _ in node.next_functions if child is not None]
            if node in leaves or any(child in on_the_way for child in children):
                on_the_way.add(node)
                others = [below[child] for child in children if child not in on_the_way]
                for weight in frozenset[Any]().union(*others):
                    directly.setdefault(weight, []).append(node)
            else:
                own = {node} & by_node.keys()
                below[node] = frozenset(own).union(*(below[child] for child in children))
        roots = [output.grad_fn for output in self._outputs]
        for root in roots:  # a way to a weight that leads through none of the nodes
            for weight in below.get(root, ()):
                directly.setdefault(weight, []).append(None)
        for weight, nodes in directly.items():
            # Of several nodes, one may lead to another.
            if len(nodes) == 1 and nodes[0] is not None:
                self._weights_of.setdefault(nodes[0], []).append(by_node[weight])


def _accumulator(leaf: torch.Tensor) -> Any:
    """Returns the node that adds to the gradient of a leaf."""
    with torch.enable_grad():
        return leaf.view_as(leaf).grad_fn.next_functions[0][0]


def _children_first(roots: Iterable[Any]) -> list[Any]:
    """Returns all nodes of a graph, each after those that it leads to."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in node.next_functions if child is not None]
    return order
