"""Listing the tensor operations of a local step."""

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lfl.client.step import StepFunction, StepInput
from lfl.engine.graph.alias import owner_of
from lfl.engine.graph.constants import ConstantReads
from lfl.engine.graph.descend import descend_in_place
from lfl.engine.graph.shapes import one_fake_mode
from lfl.engine.graph.simplify import simplify

_aten = torch.ops.aten


def leaves_of(params: Tensor, input: StepInput) -> list[Tensor]:
    """The tensors that a recording takes: parameters first, then those of the input."""
    return [params, *_leaves(input.tensors)]


def _leaves(tree: Any) -> list[Tensor]:
    """The leaves of a nest, in torch's order; for tuples and dicts of tensors faster than torch's own walk."""
    leaves: list[Tensor] = []
    for part in tree:
        if type(part) is Tensor:
            leaves.append(part)
        elif isinstance(part, tuple):
            leaves += _leaves(part)
        elif type(part) is dict:
            leaves += _leaves(tuple(part.values()))
        else:
            leaves += tree_leaves(part)
    return leaves


def record(
    step: StepFunction, params: Tensor, input: StepInput, descend: bool = False
) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """The operations of a step, from its tensors to gradients, losses and logged values, and the names of the last.

    The module's code is not made yet. No result shares memory with an argument or a constant.

    With ``descend`` the gradients, times a last argument, are added to the parameters instead of being returned.
    """
    leaves, spec = tree_flatten(input.tensors)
    names: tuple[str, ...] = ()

    def flat(params: Tensor, *leaves: Tensor) -> list[Tensor]:
        nonlocal names
        # Without its number: a recording serves every step, and shows the module `batch_idx` 0.
        with ConstantReads():
            gradients, losses, logs = step(params, StepInput(*tree_unflatten(leaves, spec)))
        names = tuple(logs)
        return [gradients, losses, *logs.values()]

    with one_fake_mode():
        recorded = make_fx(flat)(params, *leaves)
    # Frozen parameters are no reason to keep a graph at every call, nor to enter a `no_grad` there.
    for name, constant in [*recorded.named_parameters(), *recorded.named_buffers()]:
        if constant.requires_grad:
            setattr(recorded, name, torch.nn.Parameter(constant.detach(), requires_grad=False))
    recorded = simplify(recorded)
    # Before the descent, so that a logged parameter is that of before the step. Gradients that are added where they are
    # computed are no results, and need no copy.
    _own_results(recorded.graph, first=1 if descend else 0)
    if descend:
        descend_in_place(recorded)
    return recorded, names


def _own_results(graph: fx.Graph, first: int) -> None:
    """Copy results, from the ``first`` on, that share memory with arguments or constants.

    Callers may write into what they get: into an argument that would change the batch or x, into a constant that would
    change every later call.
    """
    (output,) = (node for node in graph.nodes if node.op == "output")
    results = list(output.args[0])
    with graph.inserting_before(output):
        for index in range(first, len(results)):
            if owner_of(results[index]).op != "call_function":
                results[index] = graph.call_function(_aten.clone.default, (results[index],))
    output.args = (results,)
