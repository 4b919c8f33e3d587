"""The part of a recorded step that frozen layers make of each example: it is the same until they are trained again.

A step's operations are cut in two. The trunk has those that read the batch and frozen parameters alone, from products
of matrices and convolutions on; the rest has all others, and what it reads of the trunk are tensors ``[G, b, ...]``,
with a row for each example. Operations that draw, or that are not known, are never in the trunk. That no row depends on
the other examples is for its users to see.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from lfl.engine.graph.alias import owner_of
from lfl.engine.graph.layers import batch_norm
from lfl.engine.graph.replay import Replay, replay_of
from lfl.engine.graph.rules import RULES

_aten = torch.ops.aten
_PRODUCTS = frozenset(["convolution", "mm", "bmm", "addmm", "baddbmm"])  # what is worth keeping


class Split(NamedTuple):
    """A recorded step in two parts.

    Attributes:
        trunk: from the step's tensors to those that are kept ``[G, b, ...]``.
        rest: from those that are kept, and then the step's tensors, to the results.
    """

    trunk: Replay
    rest: Replay


def split(recorded: fx.GraphModule, trained: Tensor, num_leaves: int, shape: tuple[int, int]) -> Split | None:
    """Cut a recorded step in two.

    Args:
        recorded: a step, as ``record`` makes it; it stays as it is.
        trained: which parameters are trained [D], on the CPU; the others are frozen.
        num_leaves: the number of tensors of its batch, which come behind the parameters.
        shape: G and b.

    Returns:
        The parts; None where frozen layers make nothing of an example by itself that is worth keeping.
    """
    nodes = list(recorded.graph.nodes)
    if any(node.target._schema.is_mutable for node in nodes if isinstance(node.target, OpOverload)):
        return None
    inner = _trunk(nodes, trained, num_leaves)
    kept = _kept(nodes, inner, shape)
    return Split(_trunk_of(recorded, kept, shape), _rest_of(recorded, inner, kept, shape)) if kept else None


def _trunk(nodes: Sequence[fx.Node], trained: Tensor, num_leaves: int) -> set[fx.Node]:
    """The operations on the batch and frozen parameters alone, from the first product on."""
    params, *leaves = (node for node in nodes if node.op == "placeholder")
    of_batch = set(leaves[:num_leaves])
    fixed, found = set(of_batch), set[fx.Node]()
    for node in nodes:
        sources = node.all_input_nodes
        if node.op == "get_attr" or _is_frozen_part(node, params, trained):
            fixed.add(node)
        elif node.op == "call_function" and _is_known(node) and fixed.issuperset(sources):
            fixed.add(node)
            if not of_batch.isdisjoint(sources):
                of_batch.add(node)
                if _name(node) in _PRODUCTS or not found.isdisjoint(sources):
                    found.add(node)
    return found


def _is_frozen_part(node: fx.Node, params: fx.Node, trained: Tensor) -> bool:
    """Whether a value is a part of the parameters of which nothing is trained."""
    if node.target is not operator.getitem:
        return False
    source: Any = node.args[0]
    place: Any = node.args[1]
    if _name(source) != "split_with_sizes":
        return False
    whole, sizes, *_ = source.args
    if owner_of(whole) is not params or sum(sizes) != len(trained):
        return False
    start = sum(sizes[:place])
    return not bool(trained[start : start + sizes[place]].any())


def _name(node: fx.Node) -> str:
    """The name of an operation, without its overload; empty for others than torch's."""
    return str(node.target.overloadpacket).rpartition(".")[2] if isinstance(node.target, OpOverload) else ""


def _is_known(node: fx.Node) -> bool:
    """Whether an operation is one of the rules', draws nothing, and does not normalise over the batch."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    rule = RULES.get(_name(node))
    return rule is not batch_norm if rule is not None else torch.Tag.pointwise in node.target.tags


def _kept(nodes: Sequence[fx.Node], inner: set[fx.Node], shape: tuple[int, int]) -> list[fx.Node]:
    """The values of the trunk that others read, each with a row for each example.

    Others (sums over examples, views in another order) are taken out of ``inner``: the rest makes them anew.
    """
    while True:
        kept = [node for node in nodes if node in inner and not inner.issuperset(node.users)]
        others = {node for node in kept if not _has_rows(node, shape)}
        if not others:
            return kept
        inner -= others


def _has_rows(node: fx.Node, shape: tuple[int, int]) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and (tuple(value.shape[:2]) == shape or _is_of_one(value, shape))


def _is_of_one(value: Tensor, shape: tuple[int, int]) -> bool:
    """Whether a value has the examples of the only client [b, ...]."""
    return shape[0] == 1 and tuple(value.shape[:2]) != shape and tuple(value.shape[:1]) == shape[1:]


def _trunk_of(recorded: fx.GraphModule, kept: Sequence[fx.Node], shape: tuple[int, int]) -> Replay:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in recorded.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    results = [copies[node] for node in kept]
    for place, node in enumerate(kept):
        if _is_of_one(node.meta["val"], shape):
            results[place] = graph.call_function(_aten.unsqueeze.default, (results[place], 0))
    graph.output(results)
    graph.eliminate_dead_code()
    return replay_of(fx.GraphModule(recorded, graph))


def _rest_of(recorded: fx.GraphModule, inner: set[fx.Node], kept: Sequence[fx.Node], shape: tuple[int, int]) -> Replay:
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"kept_{place}") for place, node in enumerate(kept)}
    for node in kept:
        if _is_of_one(node.meta["val"], shape):
            copies[node] = graph.call_function(_aten.select.int, (copies[node], 0, 0))
    for node in recorded.graph.nodes:
        if node in inner:
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if copies[node].target is _aten.view.default:  # what is kept may lie in the memory in another order
            copies[node].target = _aten.reshape.default
    graph.eliminate_dead_code()
    return replay_of(fx.GraphModule(recorded, graph))
