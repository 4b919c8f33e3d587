"""Plain SGD inside a recorded step: gradients are added to the parameters where they are computed.

``addmm_`` scales and adds inside the kernel, where a product and an addition round once more in between: equal to
rounding, and the only part of a recording that does not keep every bit.

It is right where nobody reads the parameters after they have been moved. All operations of the step come before the
first move, but the operands of a product are read by the move itself: a product one of whose operands is a view of the
parameters (W = A B, whose gradient for B is A^T G) is computed before, like any other gradient, and a gradient that is
such a view is copied before. What is moved are disjoint parts of the vector, each once. That nothing was missed is
checked at the first call of every shape.
"""

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import has_side_effect

from lfl.engine.graph.alias import owner_of

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.unsqueeze.default, _aten.clone.default)
_TRANSPOSES = (_aten.t.default, _aten.transpose.int)
_PRODUCTS = (_aten.mm.default, _aten.bmm.default)


def descend_in_place(recorded: fx.GraphModule) -> None:
    """Turn the first result, gradients [G, D], into ``params += factor * gradients``.

    ``params`` [G, D] is the first argument, ``factor`` a new last one. The vector is moved part by part, after
    everything has been computed from it. A part whose gradient is a product of matrices is moved by the product itself
    (``addmm_``, ``baddbmm_``).
    """
    graph = recorded.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = (node for node in graph.nodes if node.op == "output")
    gradients, *results = output.args[0]
    with graph.inserting_after(arguments[-1]):
        factor = graph.placeholder("factor")
    pieces = _pieces(gradients)
    if len(pieces) > 1:
        with graph.inserting_before(output):
            pieces = [_copied(graph, piece) if owner_of(piece) is arguments[0] else piece for piece in pieces]
    rows = arguments[0].meta["val"].shape[0]
    sizes = [_numel(recorded, piece) // rows for piece in pieces]
    with graph.inserting_before(output):
        parts = graph.call_function(torch.split_with_sizes, (arguments[0], sizes, 1))
        for index, piece in enumerate(pieces):
            product, is_transposed = _product(piece)
            if product is None or any(owner_of(operand) is arguments[0] for operand in product.all_input_nodes):
                graph.call_function(_add_scaled, (parts, index, piece, factor))
                continue
            shape = list(product.meta["val"].shape)
            shape = [*shape[:-2], shape[-1], shape[-2]] if is_transposed else shape
            graph.call_function(_add_product, (parts, index, *product.args, factor, shape, is_transposed))
    output.args = (results,)
    graph.eliminate_dead_code()


def _copied(graph: fx.Graph, node: fx.Node) -> fx.Node:
    copy = graph.call_function(_aten.clone.default, (node,))
    copy.meta["val"] = node.meta["val"]
    return copy


def _numel(recorded: fx.GraphModule, node: fx.Node) -> int:
    value = getattr(recorded, str(node.target)) if node.op == "get_attr" else node.meta["val"]
    return int(value.numel())


def _pieces(gradients: fx.Node) -> list[fx.Node]:
    """The gradients of the parts of the vector, in order: what is joined at the end, or all of it.

    Reshapes around the join keep the order of numbers in memory, and with it the places of the parts.
    """
    joined: Any = gradients
    while joined.target in _RESHAPES and len(joined.users) == 1:
        joined = joined.args[0]
    if joined.target is not _aten.cat.default or len(joined.users) > 1:
        return [gradients]
    return list(joined.args[0])


def _product(piece: fx.Node) -> tuple[fx.Node | None, bool]:
    """The product of matrices that a piece is, but for its outer shape, and whether it is the transpose of it.

    None where it is no such product, or where somebody else needs the product too: then it must exist as a tensor.
    """
    node: Any = piece
    is_transposed, is_inside = False, False
    while node.op == "call_function" and len(node.users) == 1:
        if node.target in _PRODUCTS:
            return node, is_transposed
        if node.target in _TRANSPOSES and _swaps_last(node):
            is_transposed, is_inside = not is_transposed, True
        # Going from the result inwards: what reshapes the matrix may stand outside of a transposition, where the shape
        # of the part takes its place, but not inside, where rows of the product would be no rows of the matrix.
        elif node.target not in _RESHAPES or (is_inside and _shape(node) != _shape(node.args[0])):
            break
        node = node.args[0]
    return None, False


def _shape(node: fx.Node) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape


def _swaps_last(node: Any) -> bool:
    rank = len(_shape(node))
    return node.target is _aten.t.default or {axis % rank for axis in node.args[1:]} == {rank - 1, rank - 2}


@has_side_effect
def _add_scaled(parts: list[Tensor], index: int, piece: Tensor, factor: float) -> None:
    part = parts[index]
    part.add_(piece if piece.shape == part.shape else piece.reshape(part.shape), alpha=factor)


@has_side_effect
def _add_product(
    parts: list[Tensor], index: int, left: Tensor, right: Tensor, factor: float, shape: list[int], is_transposed: bool
) -> None:
    matrices = parts[index].view(shape)
    matrices = matrices.transpose(-1, -2) if is_transposed else matrices
    (matrices.addmm_ if matrices.dim() == 2 else matrices.baddbmm_)(left, right, alpha=factor)
