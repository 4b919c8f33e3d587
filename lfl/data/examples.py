"""Examples of a training or test set: in memory, or where they are; with what is known of all of them."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import Dataset, Subset


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

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.inputs[i], self.targets[i]

    def subset(self, positions: Tensor) -> "TensorData":
        """The examples at ``positions``, copied."""
        groups = None if self.groups is None else self.groups[positions]
        return TensorData(self.inputs[positions], self.targets[positions], groups, self.classes, self.users)


@dataclass(frozen=True, eq=False)
class ItemData:
    """A map-style data set whose items are read when they are needed; otherwise as ``TensorData``.

    Args:
        dataset: its items are (input, target, ...).
        name: what it is called in errors.
        targets: target of each example, (n, ...), as far as partitioning needs it.
        groups: id of the natural group of each example, (n,) int64.
        classes: name of each class, by label; items then may have names for targets.
        users: name of each natural group, by id.
        has_labels: whether targets are class labels, one for each example.
    """

    dataset: Dataset[Any]
    name: str
    targets: Tensor
    groups: Tensor | None = None
    classes: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None
    has_labels: bool = False

    def __len__(self) -> int:
        return len(self.targets)

    def subset(self, positions: Tensor) -> "ItemData":
        """The examples at ``positions``."""
        groups = None if self.groups is None else self.groups[positions]
        inner: Dataset[Any] = Subset(self.dataset, positions.tolist())
        targets = self.targets[positions]
        return ItemData(inner, self.name, targets, groups, self.classes, self.users, self.has_labels)


Examples: TypeAlias = TensorData | ItemData
Data: TypeAlias = Examples | Dataset[Any]
"""What sources give; ``examined`` makes ``Examples`` of it."""
