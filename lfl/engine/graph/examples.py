"""The way in which a tensor of a recorded step hangs on the examples of its batch.

A step is listed twice, with batches of b and of b' examples. Sizes and numbers that differ between the two listings are
the ones that hang on the number of examples: no size that is equal by chance can be taken for the batch. Of every
tensor one of five things is known (``Kind``); ``rules`` says how operations change it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx

Kind = Literal["shared", "rows", "position", "sum", "mixed"]
"""The way in which a tensor hangs on the examples of its batch.

- shared: the batch does not enter, nor the places of the examples in it.
- rows: the slice of example i is a function of example i alone, the same for all of them.
- position: the numbers 0 ... b - 1.
- sum: the sum over the examples of such slices.
- mixed: anything else.
"""

Sizes = tuple[int, int]
"""b and b'."""
Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""A tensor's shape in both listings."""


@dataclass(frozen=True)
class Examples:
    """All that is known of one tensor.

    Attributes:
        kind: how it hangs on the examples.
        power: it has the factor ``b ** power``: a mean over the examples is a sum with power -1.
        blocks: of rows: the axis of the batch is ``[blocks, b, ...]``, flattened. It has T of them where ``[T, b, V]``
            is viewed as ``[T * b, V]``, and one where ``[b, T, V]`` is viewed as ``[b * T, V]``.
        reason: of mixed: why, for a sentence about a loss or a logged value.
        place: of mixed: the operation, and the user's line.
    """

    kind: Kind
    power: int = 0
    blocks: int = 1
    reason: str = ""
    place: str = ""


SHARED = Examples("shared")
ROWS = Examples("rows")


def mixed(reason: str) -> Examples:
    """Say that a tensor mixes the examples, and how."""
    return Examples("mixed", reason=reason)


ACROSS = mixed("looks across the examples of the batch")
BESIDE = mixed("sets examples beside other examples")
CURVED = mixed("is not linear in a sum or a mean over the batch")
DIVIDES = mixed("divides by a number that depends on the data")
MANY = mixed("depends on the number of examples otherwise than a mean does")
NUMBERS = mixed("depends on the places of the examples in the batch")
PLACES = mixed("picks examples by their place in the batch")
RANDOM = mixed("draws random numbers for the batch as a whole")
SELECTS = mixed("picks entries by a condition on the data")
WHOLE = mixed("uses a sum or a mean over the batch beside each example")


@dataclass(frozen=True)
class Operand:
    """A tensor, or a number, that goes into an operation."""

    known: Examples
    shapes: Shapes = ((), ())
    dtype: torch.dtype | None = None

    @property
    def dim(self) -> int:
        """The number of its axes."""
        return len(self.shapes[0])

    @property
    def axis(self) -> int:
        """The axis of the batch; -1 where there is none."""
        axes = differing(self.shapes)
        return axes[0] if len(axes) == 1 else -1

    def number(self, dim: int) -> int:
        """The number of an axis that may be counted from the end."""
        return dim % self.dim if self.dim else 0


def differing(shapes: Shapes) -> list[int]:
    """The axes whose sizes are not the same in both listings."""
    return [axis for axis, (first, second) in enumerate(zip(*shapes, strict=False)) if first != second]


def power_of(first: float, second: float, sizes: Sizes) -> int | None:
    """The power of b that a number of both listings has; None if it follows no power that a mean needs."""
    if first == second or (first != first and second != second):  # nan too
        return 0
    for power in (1, -1):
        if math.isclose(first * float(sizes[1]) ** power, second * float(sizes[0]) ** power, rel_tol=1e-12):
            return power
    return None


def number(first: float, second: float, sizes: Sizes) -> Operand:
    """A number as an operand."""
    power = power_of(first, second, sizes)
    return Operand(MANY if power is None else replace(SHARED, power=power))


def constant(first: Tensor, second: Tensor, sizes: Sizes) -> Operand:
    """A tensor that the module holds, or that was made of numbers, as an operand."""
    shapes = tuple(first.shape), tuple(second.shape)
    if first is second or (shapes[0] == shapes[1] and torch.equal(first, second)):
        return Operand(SHARED, shapes, first.dtype)
    if first.numel() == second.numel() == 1:
        return replace(number(first.item(), second.item(), sizes), shapes=shapes, dtype=first.dtype)
    return Operand(mixed("holds a constant that was made from the batch"), shapes, first.dtype)


def settle(known: Examples, shapes: Shapes, sizes: Sizes) -> Examples:
    """All that is known of a result with these shapes: rows must have an axis of the batch, and nothing else may."""
    if known.kind == "mixed":
        return known
    axes = differing(shapes) if len(shapes[0]) == len(shapes[1]) else []
    if known.kind in ("shared", "sum"):
        return known if shapes[0] == shapes[1] else WHOLE if known.kind == "sum" else MANY
    if len(axes) != 1:
        return BESIDE if axes else PLACES
    first, second = (shape[axes[0]] for shape in shapes)
    if known.kind == "position":
        return known if (first, second) == sizes else mixed("cuts the batch into parts")
    units = known.blocks * sizes[0], known.blocks * sizes[1]
    whole = first % units[0] == 0 and second % units[1] == 0 and first // units[0] == second // units[1]
    return known if whole else mixed("cuts the batch into parts")


@dataclass(frozen=True)
class Call:
    """One operation of both listings.

    Attributes:
        name: of the operation, without its overload and without the underscore of a write in place.
        node: the operation in the first listing.
        arguments: by name, as they are in the first listing; tensors are operands, numbers are themselves.
        operands: by the name of their argument: tensors, and numbers that are not the same in both listings.
        shapes: of the result, or of each of its results.
        sizes: b and b'.
    """

    name: str
    node: fx.Node
    arguments: dict[str, Any]
    operands: dict[str, list[Operand]]
    shapes: list[Shapes]
    sizes: Sizes

    @property
    def all_operands(self) -> list[Operand]:
        """The operands, in order."""
        return [operand for part in self.operands.values() for operand in part]

    def operand(self, name: str) -> Operand:
        """The only operand of an argument."""
        return self.operands[name][0]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument as it is in the first listing."""
        return self.arguments.get(name, default)
