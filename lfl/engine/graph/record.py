"""Recording a local step once and replaying it without Python between its tensor operations."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lfl.engine.graph.descend import descend_in_place
from lfl.engine.graph.simplify import simplify

Step = Callable[..., tuple[Tensor, Tensor, dict[str, Tensor]]]

_aten = torch.ops.aten


def leaves_of(tree: Any) -> list[Tensor]:
    """The leaves of a nest; for tuples and dicts of tensors faster than torch's own."""
    found: list[Tensor] = []
    for part in tree:
        if type(part) is Tensor:
            found.append(part)
        elif isinstance(part, tuple):
            found += leaves_of(part)
        elif type(part) is dict:
            found += leaves_of(tuple(part.values()))
        else:
            found += tree_leaves(part)
    return found


def record(step: Step, arguments: Any, descend: bool = False) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """The operations of a step, from leaves to gradients, losses and logged values, and the names of the last.

    The module's code is not made yet. No result is an argument, a constant, or a view of one.

    With ``descend`` the gradients, times a last argument, are added to the first leaf instead of being returned.
    """
    leaves, spec = tree_flatten(arguments)
    names: tuple[str, ...] = ()

    def flat(*leaves: Tensor) -> list[Tensor]:
        nonlocal names
        gradients, losses, logs = step(*tree_unflatten(leaves, spec))
        names = tuple(logs)
        return [gradients, losses, *logs.values()]

    recorded = make_fx(flat)(*leaves)
    # Frozen parameters are no reason to keep a graph at every call, nor to enter a `no_grad` there.
    for name, constant in [*recorded.named_parameters(), *recorded.named_buffers()]:
        if constant.requires_grad:
            setattr(recorded, name, torch.nn.Parameter(constant.detach(), requires_grad=False))
    recorded = simplify(recorded)
    if descend:
        descend_in_place(recorded)
    _own_results(recorded.graph)
    return recorded, names


def _own_results(graph: fx.Graph) -> None:
    """Copy results that are, or are views of, arguments and constants: callers may write into what they get."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        results = [r if _is_fresh(r) else graph.call_function(_aten.clone.default, (r,)) for r in output.args[0]]
    output.args = (results,)


def _is_fresh(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    is_view = node.target is operator.getitem or any(result.alias_info is not None for result in returns)
    return _is_fresh(node.args[0]) if is_view and isinstance(node.args[0], fx.Node) else not is_view
