"""Examples of a training or test set: in memory, or where they are; with what is known of all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import ConcatDataset, Dataset, Subset

from lfl.data.nests import Path, joined

Collate: TypeAlias = Callable[[list[Any]], Any]
"""From the items of a batch to the batch, as of torch's DataLoader."""


@dataclass(frozen=True)
class ItemFormat:
    """The format of an item: what is what in it, as a source's user says.

    Args:
        target: the part that is the class label, or the target of a regression: a key of a dict, a place in a tuple, or
            a path of such with dots, ``meta.label``. None for the second part of a tuple.
        input: the part that transforms are for; None for the first part of a tuple.
        collate_fn: makes a batch of items; None to stack them.
    """

    target: str | int | None = None
    input: str | int | None = None
    collate_fn: Collate | None = None


USUAL = ItemFormat()
"""Of items (input, target)."""


@dataclass(frozen=True, eq=False)
class TensorData:
    """A data set in memory. It is also a map-style data set whose items are (input, target).

    Args:
        inputs: inputs, (n, ...).
        targets: class labels, (n,) int64, or the targets of a regression, (n, ...).
        groups: id of the natural group (writer, user) of each example, (n,) int64; None if the data has no groups.
        classes: name of each class, by label; None if classes have no names.
        users: name of each natural group, by id; None if groups have no names.

    Raises:
        ValueError: the lengths differ.
    """

    inputs: Tensor
    targets: Tensor
    groups: Tensor | None = None
    classes: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        groups = self.targets if self.groups is None else self.groups
        if not len(self.inputs) == len(self.targets) == len(groups):
            raise ValueError(f"Got {len(self.inputs)} inputs, {len(self.targets)} targets, {len(groups)} groups.")

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """All examples as one batch."""
        return self.inputs, self.targets

    @property
    def input(self) -> Path:
        """The path to the input in ``parts``."""
        return (0,)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.inputs[i], self.targets[i]

    def subset(self, positions: Tensor) -> "TensorData":
        """The examples at ``positions``, copied."""
        groups = None if self.groups is None else self.groups[positions]
        return TensorData(self.inputs[positions], self.targets[positions], groups, self.classes, self.users)


@dataclass(frozen=True, eq=False)
class NestData:
    """A data set in memory whose items are nests other than (input, target); otherwise as ``TensorData``.

    Args:
        parts: all examples as one batch, a nest of tensors (n, ...) and riders.
        targets: target of each example, (n, ...), as far as partitioning needs it.
        groups: id of the natural group of each example, (n,) int64.
        classes: name of each class, by label.
        users: name of each natural group, by id.
        input: where the part is that transforms are for; None for nowhere.
    """

    parts: Any
    targets: Tensor
    groups: Tensor | None = None
    classes: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None
    input: Path | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, positions: Tensor) -> "NestData":
        """The examples at ``positions``, copied."""
        groups = None if self.groups is None else self.groups[positions]
        parts = tree_map(lambda part: part[positions], self.parts)
        return NestData(parts, self.targets[positions], groups, self.classes, self.users, self.input)


class KeptItems(Dataset[Any]):
    """Items that have been read, as they are: for batches that are made of items and not of tensors."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


@dataclass(frozen=True, eq=False)
class ItemData:
    """A map-style data set whose items are read when they are needed; otherwise as ``TensorData``.

    Args:
        dataset: its items are nests.
        name: what it is called in errors.
        targets: target of each example, (n, ...), as far as partitioning needs it.
        groups: id of the natural group of each example, (n,) int64.
        classes: name of each class, by label; items then may have names for targets.
        users: name of each natural group, by id.
        has_labels: whether targets are class labels, one for each example.
        format: what is what in an item.
    """

    dataset: Dataset[Any]
    name: str
    targets: Tensor
    groups: Tensor | None = None
    classes: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None
    has_labels: bool = False
    format: ItemFormat = USUAL

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, positions: Tensor) -> "ItemData":
        """The examples at ``positions``."""
        groups = None if self.groups is None else self.groups[positions]
        inner: Dataset[Any] = Subset(self.dataset, positions.tolist())
        targets = self.targets[positions]
        return replace(self, dataset=inner, targets=targets, groups=groups)


Examples: TypeAlias = TensorData | NestData | ItemData
Data: TypeAlias = Examples | Dataset[Any]
"""The data that sources give; ``examined`` makes ``Examples`` of it."""


def merged(one: Examples, other: Examples) -> Examples:
    """The examples of two sets that ``examined`` has made, as one: the second's come behind the first's.

    Raises:
        ValueError: they are of different kinds or shapes.
    """
    groups = torch.cat([one.groups, other.groups]) if one.groups is not None and other.groups is not None else None
    try:
        targets = torch.cat([one.targets, other.targets])
        if isinstance(one, ItemData) and isinstance(other, ItemData):
            both: Dataset[Any] = ConcatDataset([one.dataset, other.dataset])
            return replace(one, dataset=both, targets=targets, groups=groups)
        if isinstance(one, TensorData) and isinstance(other, TensorData):
            return replace(one, inputs=joined([one.inputs, other.inputs]), targets=targets, groups=groups)
        if isinstance(one, NestData) and isinstance(other, NestData):
            parts = tree_map(lambda *leaves: joined(leaves), one.parts, other.parts)
            return replace(one, parts=parts, targets=targets, groups=groups)
        reason = f"one is {type(one).__name__}, the other {type(other).__name__}"
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
    raise ValueError(f"Training and test set cannot be merged: {reason}.")
