"""The effect of arithmetic on a batch's examples: entry by entry, along axes, in products, and where shapes change.

Each rule takes what is known of the operands of an operation and says what is known of its result. Names of arguments
are those of torch's operators.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import fx

from lfl.engine.graph.examples import (
    ACROSS,
    BESIDE,
    CURVED,
    DIVIDES,
    MANY,
    NUMBERS,
    PLACES,
    ROWS,
    SHARED,
    WHOLE,
    Call,
    Examples,
    Operand,
    mixed,
)

Rule = Callable[[Call], Examples]
"""From an operation to what is known of its result."""


def together(operands: Iterable[Operand]) -> Examples:
    """All that is known of the result of operands, broadcast and computed entry by entry; their powers are left out."""
    operands = list(operands)
    for operand in operands:
        if operand.known.kind == "mixed":
            return operand.known
    kinds = {operand.known.kind for operand in operands}
    if "position" in kinds:
        return NUMBERS
    if "rows" not in kinds:
        return Examples("sum") if "sum" in kinds else SHARED
    if "sum" in kinds:
        return WHOLE
    # Broadcasting aligns axes at the end.
    rows = {(o.axis - o.dim, o.known.blocks) for o in operands if o.known.kind == "rows"}
    return replace(ROWS, blocks=rows.pop()[1]) if len(rows) == 1 else BESIDE


def curved(operands: Iterable[Operand]) -> Examples:
    """As ``together``, for an operation that is not linear."""
    operands = list(operands)
    result = together(operands)
    if result.kind == "sum":
        return CURVED
    return MANY if result.kind != "mixed" and any(o.known.power for o in operands) else result


def pointwise(call: Call) -> Examples:
    """An operation on entries that lie in the same place, after broadcasting."""
    return curved(call.all_operands)


def added(operands: list[Operand]) -> Examples:
    """The sum of operands, or what lists them. A mean may have something shared added to it, as the mean of that."""
    result = together(operands)
    if result.kind == "mixed":
        return result
    # A shared number is a sum over the examples of a b-th of it.
    means = result.kind == "sum"
    powers = {o.known.power - (means and o.known.kind == "shared") for o in operands}
    return replace(result, power=powers.pop()) if len(powers) == 1 else MANY


def add(call: Call) -> Examples:
    """A sum or a difference."""
    other = call.get("other")
    if isinstance(other, int | float) and other == 0:
        return call.operand("self").known  # where Python's `sum` begins
    others = [o for name, part in call.operands.items() if name not in ("self", "other") for o in part]
    return MANY if others else added([first_of(call, "self"), first_of(call, "other")])


def first_of(call: Call, name: str) -> Operand:
    """The operand of an argument; a number that is the same in both listings is shared."""
    return call.operands[name][0] if call.operands.get(name) else Operand(SHARED)


def multiply(call: Call) -> Examples:
    """A product, entry by entry."""
    operands = [first_of(call, "self"), first_of(call, "other")]
    result = together(operands)
    if result.kind == "sum" and all(o.known.kind == "sum" for o in operands):
        return CURVED
    return result if result.kind == "mixed" else replace(result, power=sum(o.known.power for o in operands))


def divide(call: Call) -> Examples:
    """A quotient, entry by entry."""
    top, bottom = first_of(call, "self"), first_of(call, "other")
    if bottom.known.kind == "sum" or bottom.known.reason == CURVED.reason:
        return DIVIDES
    if call.get("rounding_mode") is not None:
        return pointwise(call)
    result = together([top, bottom])
    return result if result.kind == "mixed" else replace(result, power=top.known.power - bottom.known.power)


def convert(call: Call) -> Examples:
    """Copies, and conversions; to integers, of a sum, they round."""
    source = call.operand("self")
    dtype: torch.dtype | None = call.get("dtype") or source.dtype
    exact = dtype is None or dtype == source.dtype or dtype.is_floating_point
    return source.known if exact else curved([source])


# -- shapes ------------------------------------------------------------------------------------------------------------


def moved(call: Call) -> Examples:
    """Axes are moved as a whole."""
    return call.operand("self").known


def viewed(call: Call) -> Examples:
    """Axes are joined or cut, in the order of the entries."""
    source, (shapes,) = call.operand("self"), call.shapes
    if source.known.kind not in ("rows", "position") or source.axis < 0:
        return source.known
    axis = Operand(ROWS, shapes).axis if len(shapes[0]) == len(shapes[1]) else -1
    if axis < 0:
        return mixed("cuts the batch into parts")
    # All that lies before the batch: the blocks of its axis, and the axes in front of it.
    before = source.known.blocks * math.prod(source.shapes[0][: source.axis])
    blocks, rest = divmod(before, math.prod(shapes[0][:axis]))
    if rest or (source.known.kind == "position" and blocks != 1):
        return mixed("cuts the batch into parts")
    return replace(source.known, blocks=blocks)


def expanded(call: Call) -> Examples:
    """A shared value that is expanded is the same for every example."""
    source, (shapes,) = call.operand("self"), call.shapes
    known = source.known
    if known.kind in ("rows", "position"):
        place = source.axis - source.dim  # from the end: new axes come in front
        return known if shapes[0][place] == source.shapes[0][place] else mixed("repeats the examples of the batch")
    if known.kind == "shared" and shapes[0] != shapes[1]:
        return replace(ROWS, power=known.power)
    return known


def filled(call: Call) -> Examples:
    """One number everywhere."""
    (shapes,) = call.shapes
    value = added([Operand(SHARED), *(o for name, part in call.operands.items() if name != "self" for o in part)][-1:])
    if value.kind != "shared" or shapes[0] == shapes[1]:
        return value
    # As many blocks as what it is to look like; any number would do.
    blocks = call.operand("self").known.blocks if call.name in ("zero", "fill") or call.name.endswith("_like") else 1
    return replace(ROWS, power=value.power, blocks=blocks)


def numbered(call: Call) -> Examples:
    """``arange``; only the places of the examples themselves are known."""
    count = call.shapes[0] == ((call.sizes[0],), (call.sizes[1],))
    ends = call.get("start", 0) == 0 and call.get("step", 1) == 1 and call.get("end") == call.sizes[0]
    return Examples("position") if count and ends else NUMBERS


def joined(call: Call) -> Examples:
    """``cat`` and ``stack``, of tensors of one shape but for the axis along which they are joined."""
    operands = call.operands["tensors"]
    first = operands[0]
    if call.name == "cat" and first.known.kind == "rows" and first.axis == first.number(call.get("dim", 0)):
        return mixed("joins batches")
    return added(operands)


# -- along axes --------------------------------------------------------------------------------------------------------


def axes_of(call: Call) -> set[int]:
    """The axes of ``self`` that an operation works along; all of them where it names none."""
    source = call.operand("self")
    named = [call.arguments[name] for name in ("dim", "dims", "dimension", "dim1", "dim2") if name in call.arguments]
    numbers = [n for part in named if part is not None for n in (part if isinstance(part, list | tuple) else [part])]
    return {source.number(n) for n in numbers} or set(range(source.dim))


def along(linear: bool) -> Rule:
    """The rule of an operation that works along axes and leaves the others apart."""

    def rule(call: Call) -> Examples:
        source = call.operand("self")
        kept = source.known if linear else curved(call.all_operands)
        if source.known.kind not in ("rows", "position") or kept.kind == "mixed" or source.axis not in axes_of(call):
            return kept
        if call.name == "slice" and source.shapes == call.shapes[0]:
            return kept
        return PLACES if linear else ACROSS

    return rule


def summed(call: Call) -> Examples:
    """Sums and means along axes: over the batch, what a mean over the examples is made of."""
    source = call.operand("self")
    known = convert(call)  # to another type first, where one is named
    if known.kind == "position":
        return NUMBERS
    if known.kind != "rows" or source.axis not in axes_of(call):
        return known
    if call.name == "sum" and source.shapes == ((call.sizes[0],), (call.sizes[1],)) and _counts_targets(call.node):
        # b, or else one of the targets is ignored: that example alone gives 0 / 0, which does not go unnoticed.
        return replace(SHARED, power=1)
    return Examples("sum", power=known.power - (call.name == "mean"))


def _counts_targets(node: fx.Node) -> bool:
    """Whether a sum counts the targets that are not ignored, one an example, as in cross entropy with smoothing."""
    kept = node.args[0]
    if not isinstance(kept, fx.Node) or _name(kept) != "bitwise_not":
        return False
    ignored = kept.args[0]
    return (
        isinstance(ignored, fx.Node)
        and _name(ignored) == "eq"
        and any(_name(n) == "masked_fill_" for n in ignored.users)
    )


def _name(node: fx.Node) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


# -- products ----------------------------------------------------------------------------------------------------------


def contracted(first: Operand, second: Operand, spec: str) -> Examples:
    """A product in Einstein's notation. Over the batch it is a sum of the examples' products."""
    inputs, output = spec.split("->")
    letters = inputs.split(",")
    for operand in (first, second):
        if operand.known.kind == "mixed":
            return operand.known
    kinds = [first.known.kind, second.known.kind]
    power = first.known.power + second.known.power
    if "position" in kinds:
        return NUMBERS
    if "rows" not in kinds:
        return CURVED if kinds == ["sum", "sum"] else Examples("sum" if "sum" in kinds else "shared", power)
    if "sum" in kinds:
        return WHOLE
    rows = [(o, part[o.axis]) for o, part in zip((first, second), letters, strict=True) if o.known.kind == "rows"]
    if len({(letter, o.known.blocks) for o, letter in rows}) > 1:
        return mixed("compares examples with one another")
    letter, blocks = rows[0][1], rows[0][0].known.blocks
    return replace(ROWS, power=power, blocks=blocks) if letter in output else Examples("sum", power)


def product(first: str, second: str, spec: str, added_to: str = "") -> Rule:
    """The rule of a product of two arguments, which may be added to a third."""

    def rule(call: Call) -> Examples:
        result = contracted(call.operand(first), call.operand(second), spec)
        if not added_to or result.kind == "mixed":
            return result
        if call.operands.keys() - {first, second, added_to}:  # a factor that depends on b
            return MANY
        return added([Operand(result, call.shapes[0]), call.operand(added_to)])

    return rule
