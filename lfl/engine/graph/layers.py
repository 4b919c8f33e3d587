"""The effect of layers, losses and indices on a batch's examples: where they lie matters, and which options were set.

Rules like those of ``arithmetic``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from lfl.engine.graph.arithmetic import Rule, contracted, curved, pointwise
from lfl.engine.graph.examples import (
    ACROSS,
    BESIDE,
    CURVED,
    MANY,
    PLACES,
    RANDOM,
    ROWS,
    SELECTS,
    SHARED,
    Call,
    Examples,
    mixed,
)


def apart(call: Call, axes: Mapping[str, Iterable[int]], reason: Examples = ACROSS) -> Examples:
    """An operation that keeps the batch apart where it is one of these axes of these arguments, and shares the rest."""
    blocks = set()
    for name, operands in call.operands.items():
        for operand in operands:
            kind = operand.known.kind
            if kind == "mixed":
                return operand.known
            if kind == "sum":
                return CURVED
            if operand.known.power:
                return MANY
            if kind == "position" or (kind == "rows" and operand.axis not in axes.get(name, ())):
                return reason
            if kind == "rows":
                blocks.add(operand.known.blocks)
    return replace(ROWS, blocks=blocks.pop()) if len(blocks) == 1 else BESIDE


def trailing(count: int) -> Rule:
    """The rule of an operation on the last axes of its first argument."""

    def rule(call: Call) -> Examples:
        name = next(iter(call.operands))
        return apart(call, {name: range(call.operand(name).dim - count)})

    return rule


def examples_first(*names: str) -> Rule:
    """The rule of an operation on examples that lie along the first axis of these arguments."""
    return lambda call: apart(call, dict.fromkeys(names, (0,)))


def layer_norm(call: Call) -> Examples:
    """Normalisation over the last axes."""
    source = call.operand("input")
    return apart(call, {"input": range(source.dim - len(call.get("normalized_shape")))})


def padded(call: Call) -> Examples:
    """A frame around the last axes."""
    source = call.operand("self")
    return apart(call, {"self": range(source.dim - len(call.get("pad")) // 2)})


def batch_norm(call: Call) -> Examples:
    """Normalisation of channels, which are the second axis."""
    if call.operand("input").axis == 1:
        # Of examples that are channels, as in instance normalisation, the statistics of each channel are their own.
        others = ("weight", "bias", "running_mean", "running_var")
        return apart(call, {"input": (1,)} | dict.fromkeys(others, (0,)))
    if call.get("training", call.name == "_batch_norm_with_update"):
        return mixed("normalises with statistics of the whole batch")
    return apart(call, {"input": (0, 2, 3, 4)})


def attention(call: Call) -> Examples:
    """Attention, over examples and heads."""
    if call.get("dropout_p"):
        return RANDOM
    rows = {o.axis for o in call.all_operands if o.known.kind == "rows"}
    return apart(call, dict.fromkeys(call.operands, (0, 1))) if len(rows) == 1 else BESIDE


def recurrent(call: Call) -> Examples:
    """Layers of torch's recurrent networks, over time and examples."""
    if call.get("dropout"):
        return RANDOM
    if call.get("batch_sizes"):
        return ACROSS  # packed sequences have no axis for the batch
    first = call.name == "_cudnn_rnn" and call.get("batch_first")
    source = {"input": (0,) if first else (1,)}
    return apart(
        call, source | {name: (call.operand(name).dim - 2,) for name in call.operands if name[:2] in ("hx", "cx")}
    )


def distances(call: Call) -> Examples:
    """``cdist``: between all rows of two matrices."""
    first, second = call.operand("x1"), call.operand("x2")
    batch = "abcdefgh"[: first.dim - 2]
    result = contracted(first, second, f"{batch}pr,{batch}qr->{batch}pq") if first.dim == second.dim else BESIDE
    return CURVED if result.kind == "sum" else MANY if result.power else result


# -- indices -----------------------------------------------------------------------------------------------------------


def embedded(call: Call) -> Examples:
    """Rows of a table, by their numbers."""
    if call.get("scale_grad_by_freq"):
        return mixed("scales gradients by how often an index occurs in the batch")
    return apart(call, {"indices": range(call.operand("indices").dim)})


def gathered(call: Call) -> Examples:
    """``gather`` and ``scatter``: entries stay in their places along all axes but one."""
    operands = call.all_operands
    tensors = [operand for operand in operands if operand.dtype is not None]
    result = curved(operands)
    if result.kind != "rows":
        return result
    # Of a shared tensor each example would read, or write, the line of its own place; so it would of a longer one.
    places = {(o.axis, o.dim, o.shapes[0][o.axis]) if o.known.kind == "rows" else () for o in tensors}
    apart = len(places) == 1 and tensors[0].axis != tensors[0].number(call.get("dim"))
    return result if apart else PLACES


def indexed(call: Call) -> Examples:
    """``x[i, j, ...]`` with tensors of numbers."""
    source, indices = call.operand("self"), call.get("indices")
    given = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return SELECTS
    if source.known.kind != "rows":
        result = curved(given)
        return source.known if result == SHARED or source.known.kind == "mixed" else curved([*given, source])
    own = indices[source.axis] if source.axis < len(indices) else None
    if own is None:
        return source.known if curved(given) == SHARED else mixed("compares examples with one another")
    if own.known.kind != "position" or source.known.blocks != 1 or source.shapes[0][source.axis] != call.sizes[0]:
        return PLACES
    # Each example at its own place: the number of the place is like something of the example's own.
    picked = [replace(i, known=ROWS) if i.known.kind == "position" else i for i in given]
    result = curved(picked)
    return result if result.kind == "mixed" else replace(result, power=source.known.power)


# -- losses ------------------------------------------------------------------------------------------------------------


def _reduced(call: Call, rows: Examples) -> Examples:
    """A loss of each example, listed, averaged or added."""
    if rows.kind != "rows" or call.get("reduction") == 0:
        return rows
    return Examples("sum", power=-1 if call.get("reduction") == 1 else 0)


def entry_loss(call: Call) -> Examples:
    """A loss of entries that lie in the same place."""
    return _reduced(call, pointwise(call))


def margin_loss(call: Call) -> Examples:
    """A loss of the logits and the target of each example."""
    return _reduced(call, apart(call, {"self": (0,), "target": (0,)}))


def nll_loss(call: Call) -> Examples:
    """The negative log likelihood, whose mean is one over targets: weighted ones, and those that are not ignored."""
    rows = apart(call, {"self": (0,), "target": (0,)})
    if rows.kind != "rows" or call.get("reduction") != 1:
        return _reduced(call, rows)
    if call.operands.get("weight"):
        return mixed("divides by the sum of its targets' class weights, which depends on the data")
    target = call.operand("target")
    if target.dim != 1 or target.shapes[0][0] != call.sizes[0]:
        return mixed("divides by the number of targets that are not ignored, which depends on the data")
    # A target that is ignored gives nan alone, which does not go unnoticed.
    return Examples("sum", power=-1)
