"""The labels, groups and faults that a data module finds in a training and a test set before it deals them.

All faults are found here, before any training, and said in one line that names the item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info
from torch import Tensor

from lfl.data.columns import (
    Column,
    DataError,
    as_column,
    as_labels,
    check_numbers,
    column_of,
    encoded,
    is_label,
    names_of,
)
from lfl.data.examples import USUAL, Data, Examples, ItemData, ItemFormat, KeptItems, NestData, TensorData
from lfl.data.items import ItemReader, differing
from lfl.data.nests import Path, is_numeric, leaves_of, part_of, rides, stacked, with_part

_SPOTS = 8  # items that are read to compare them with what the data set says of them
_TRIES = 8  # readings of an item with other draws, before its label is said to be wrong


def examined(
    train: Data,
    test: Data,
    num_classes: int,
    owner: str = "",
    in_memory: bool = False,
    format: ItemFormat = USUAL,
) -> list[Examples]:
    """A training and a test set with the target and group of every example, on which both agree.

    Names (of classes, of users) become numbers, the same in both sets; labels of shape (n, 1) become (n,).

    Args:
        train: training set.
        test: test set.
        num_classes: number of classes; 0 if targets are not classes.
        owner: the source, for errors.
        in_memory: read all items, and keep them: as tensors, or as they are for a ``collate_fn``.
        format: what is what in an item.

    Raises:
        TypeError: a data set has no length.
        DataError: a data set is empty; an item is no nest, or has no target; items, `targets` and `groups` do not fit
            one another; or a label is outside 0..num_classes-1.
    """
    names = [f"`{name}` of {owner or type(data).__name__}" for name, data in (("train", train), ("test", test))]
    found = [_look(data, name, num_classes, in_memory, format) for data, name in zip((train, test), names, strict=True)]
    classes, users = _class_names(*found), _user_names(*found)
    return [_finished(look, classes, users, num_classes) for look in found]


def check_item(reader: ItemReader) -> None:
    """Raises DataError unless the first item of a data set is a nest of which a batch can be made."""
    if not len(reader):
        raise DataError(f"{reader.name} has no examples.")
    if reader.format.collate_fn is not None:
        reader.batch([(0, None)])
        return
    item = reader[0]
    leaves = list(leaves_of(item))
    if any(is_numeric(leaf) for _, leaf in leaves) and all(is_numeric(leaf) or rides(leaf) for _, leaf in leaves):
        return
    given = [f"{'.'.join(map(str, path))}: {type(leaf).__name__}" for path, leaf in leaves]
    raise DataError(
        f"Items of {reader.name} must be tuples, dicts or lists of tensors, arrays and numbers, beside which strings "
        f"may be; the first of {type(reader.dataset).__name__} is a {type(item).__name__} [{', '.join(given)}]: "
        "convert it in the data set, or give its source a `collate_fn`."
    )


@dataclass
class _Look:
    """A data set as it was found; targets and groups may still be names."""

    data: Data
    name: str
    targets: Column
    groups: Column | None
    parts: Any = None  # all examples as one batch, of data that is kept in memory
    target: Path | None = None  # where the target is in them
    input: Path | None = None  # where the input is
    classes: tuple[str, ...] | None = None  # where the data set itself says which number a name has
    users: tuple[str, ...] | None = None
    format: ItemFormat = USUAL


def _look(data: Data, name: str, num_classes: int, in_memory: bool, format: ItemFormat) -> _Look:
    if isinstance(data, TensorData | NestData):
        target = (1,) if isinstance(data, TensorData) else None
        _say_where_nan_is(data, name)
        return _Look(
            data, name, data.targets, data.groups, data.parts, target, data.input, data.classes, data.users, format
        )
    if isinstance(data, ItemData):
        return _Look(
            data.dataset,
            name,
            data.targets,
            data.groups,
            classes=data.classes,
            users=data.users,
            format=data.format,
        )
    reader = ItemReader(data, name, format=format)
    check_item(reader)
    reader.warn_of_other_draws()
    if in_memory:
        reader.warn_of_draws_kept()
    targets, groups = column_of(data, "targets", name), column_of(data, "groups", name)
    if num_classes and isinstance(targets, Tensor):
        targets = as_labels(targets)
    path = _target_of(reader, num_classes, has_column=targets is not None)
    is_known = targets is not None or path is None
    spots = _spots(len(reader)) if is_known and not in_memory else list(range(len(reader)))
    if isinstance(targets, np.ndarray):  # an example of each name, to learn which number the items give it
        spots = sorted({*spots, *np.unique(targets, return_index=True)[1].tolist()})
    items, labels = _read(reader, spots, path, keeps_items=in_memory)
    if num_classes and isinstance(labels, Tensor):
        labels = as_labels(labels)
    if targets is None:
        targets = torch.empty(len(reader), 0) if labels is None else labels
    look = _Look(data, name, targets, groups, target=path, format=format)
    if path is not None and labels is not None:
        if isinstance(targets, np.ndarray) and isinstance(labels, Tensor):
            look.classes = _learned(targets, labels, spots, name)
            look.targets = encoded(targets, look.classes, name)
        _compare(look.targets, labels, spots, reader, path)
        if in_memory and isinstance(labels, Tensor):
            look.targets = labels  # which may hold more than the attribute: soft labels
    if in_memory and format.collate_fn is not None:
        look.data = KeptItems(items)
    elif in_memory:
        look.parts = stacked(items, lambda at, values: differing(values, spots, name, at))
        look.input = reader.input
    return look


def _target_of(reader: ItemReader, num_classes: int, has_column: bool) -> Path | None:
    """The path to the target of an item; None where partitioning needs none.

    Raises:
        DataError: nobody says where the class labels are.
    """
    path = reader.target
    if path is None and num_classes and not has_column:
        names = ", ".join(".".join(map(str, found)) for found, _ in leaves_of(reader[0]))
        raise DataError(
            f"`num_classes={num_classes}`, but nobody says which part of the items of {reader.name} is the class "
            f"label: name it in `target` of the source, one of: {names or 'none'}."
        )
    # Sequences of targets, as of a language model, deal no examples to clients.
    is_sequence = path is not None and not num_classes and reader.format.collate_fn is not None
    return None if is_sequence and np.ndim(part_of(reader[0], path or ())) > 0 else path


def _spots(count: int) -> list[int]:
    """Some positions, evenly spread, with the first and the last."""
    return sorted({round(place * (count - 1) / (_SPOTS - 1)) for place in range(_SPOTS)})


def _read(
    reader: ItemReader, positions: Sequence[int], target: Path | None, keeps_items: bool
) -> tuple[list[Any], Column | None]:
    """The items at ``positions``, if they are kept, and their targets, if they have some."""
    kept: list[Any] = []
    targets: list[Any] = []
    first: Any = None
    count = 0
    for start in range(0, len(positions), 1000):
        for item in reader.items([(position, None) for position in positions[start : start + 1000]]):
            first = item if first is None else first
            if reader.format.collate_fn is None:
                _check_alike(first, item, [positions[0], positions[count]], reader.name)
            targets += [] if target is None else [part_of(item, target)]
            kept += [item] if keeps_items else []
            count += 1
    return kept, None if target is None else as_column(targets, f"the targets of {reader.name}'s items")


def _check_alike(first: Any, item: Any, positions: list[int], name: str) -> None:
    """Raises DataError if the parts of an item, but for labels, have other shapes than those of the first one."""
    for (path, one), (other_path, other) in zip(leaves_of(first), leaves_of(item), strict=False):
        if path == other_path and np.shape(one) != np.shape(other):
            raise differing([one, other], positions, name, path)


def _learned(names: Column, labels: Tensor, positions: Sequence[int], name: str) -> tuple[str, ...]:
    """The name that belongs to each label, where `targets` has names and items have numbers."""
    known: dict[int, str] = {}
    labels_of: dict[str, int] = {}
    if not is_label(labels):
        raise DataError(f"`targets` of {name} are names, but its items have targets of shape {list(labels.shape[1:])}.")
    for position, label in zip(positions, labels.tolist(), strict=True):
        said = str(names[position])
        other, usual = known.setdefault(label, said), labels_of.setdefault(said, label)
        if other != said or usual != label:
            elsewhere = f"others called so have {usual}" if usual != label else f"others that have it are {other!r}"
            raise DataError(
                f"`targets` of {name} calls example {position} {said!r}, but its item has the label {label}, while "
                f"{elsewhere}: one of the two is wrong."
            )
    return tuple(known.get(label, "") for label in range(max(known) + 1))


def _compare(targets: Column, labels: Column, positions: Sequence[int], reader: ItemReader, path: Path) -> None:
    """Raises DataError if `targets` is not what the items at ``positions`` have."""
    said = targets[np.asarray(positions, dtype=np.int64)]
    if isinstance(said, Tensor) and isinstance(labels, Tensor):
        # Soft labels, crops of masks and the like cannot be compared with labels.
        wrong = (
            (said != labels).reshape(len(said), -1).any(1).nonzero() if said.shape == labels.shape else torch.empty(0)
        )
        places = wrong.flatten().long().tolist()
    elif isinstance(said, Tensor):
        places = [0]
    else:
        places = np.flatnonzero(said != labels).tolist()
    for place in places:
        others = [part_of(reader.items([(positions[place], key)])[0], path) for key in range(_TRIES)]
        # Items may draw their labels, as where labels are noisy.
        if all(str(_plain(other)) != str(_plain(said[place])) for other in others):
            raise DataError(
                f"`targets` of {reader.name} says {_plain(said[place])!r} for example {positions[place]}, but the item "
                f"has the target {_plain(labels[place])!r}: make `targets` what `__getitem__` returns, or leave it out."
            )


def _plain(value: Any) -> Any:
    """A number or a name without its wrapping; tensors become lists."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return found[0] if isinstance(found, list) and len(found) == 1 else found


def _class_names(train: _Look, test: _Look) -> tuple[str, ...] | None:
    """The names of classes, by label; None if they have none. A class that training does not know is refused."""
    for label, name in enumerate(test.classes or ()):
        if name and train.classes is not None and name != (*train.classes, *[""] * len(test.classes or ()))[label]:
            raise DataError(
                f"The class {name!r} has the label {label} in {test.name}, which {train.name} does not say: both must "
                "number the same classes alike."
            )
    if train.classes is not None:
        return train.classes
    _check_both(train.targets, test.targets, train, test, "targets")
    return names_of([train.targets]) if isinstance(train.targets, np.ndarray) else None


def _user_names(train: _Look, test: _Look) -> tuple[str, ...] | None:
    """The names of groups, by id; None if they have none. Users may be in one of the two sets only."""
    if train.users is not None:
        return train.users
    groups = [values for values in (train.groups, test.groups) if values is not None]
    if len(groups) == 2:
        _check_both(groups[0], groups[1], train, test, "groups")
    return names_of(groups) if groups and isinstance(groups[0], np.ndarray) else None


def _check_both(one: Column, other: Column, train: _Look, test: _Look, what: str) -> None:
    if isinstance(one, Tensor) != isinstance(other, Tensor):
        raise DataError(f"The {what} of {train.name} and {test.name} must both be names, or both numbers.")


def _finished(
    look: _Look, classes: tuple[str, ...] | None, users: tuple[str, ...] | None, num_classes: int
) -> Examples:
    targets = encoded(look.targets, classes, look.name)
    check_numbers(targets, "target", look.name)
    if num_classes:
        targets = as_labels(targets)
        _check_range(targets, look.name, num_classes)
    groups = None if look.groups is None else _as_groups(encoded(look.groups, users, look.name), look.name)
    if look.parts is not None:
        parts = look.parts if look.target is None else with_part(look.parts, look.target, targets)
        if type(parts) in (tuple, list) and len(parts) == 2 and look.target == (1,) and isinstance(parts[0], Tensor):
            return TensorData(parts[0], targets, groups, classes, users)
        return NestData(tuple(parts) if type(parts) is list else parts, targets, groups, classes, users, look.input)
    has_labels = bool(num_classes) and is_label(targets)
    assert not isinstance(look.data, TensorData | NestData | ItemData)
    return ItemData(look.data, look.name, targets, groups, classes, users, has_labels, look.format)


def _as_groups(groups: Tensor, name: str) -> Tensor:
    groups = groups.reshape(-1) if groups.dim() == 2 and groups.shape[1] == 1 else groups
    check_numbers(groups, "group", name)
    if groups.dim() != 1 or (groups.is_floating_point() and bool((groups != groups.round()).any())):
        raise DataError(
            f"`groups` of {name} are {groups.dtype} of shape {list(groups.shape)}: they must be one whole number or "
            "name for each example."
        )
    return groups.long()


def _check_range(targets: Tensor, name: str, num_classes: int) -> None:
    if not is_label(targets):
        return
    outside = ((targets < 0) | (targets >= num_classes)).nonzero().flatten()
    if len(outside):
        raise DataError(
            f"Example {int(outside[0])} of {name} has the label {int(targets[outside[0]])}, which is outside "
            f"0..{num_classes - 1}: count labels from 0, or set `num_classes` (now {num_classes}; the largest label is "
            f"{int(targets.max())})."
        )


def _say_where_nan_is(data: TensorData | NestData, name: str) -> None:
    # Said, not refused: a module may know what to do with missing values; if not, training ends and names the client.
    # The sum first, which takes no memory; it may also be NaN for other reasons.
    inputs = [data.inputs] if isinstance(data, TensorData) else [part for _, part in leaves_of(data.parts)]
    for part in inputs:
        if isinstance(part, Tensor) and part.is_floating_point() and bool(part.sum().isnan()):
            broken = part.reshape(len(part), -1).isnan().any(1).nonzero().flatten()
            if len(broken):
                rank_zero_info(f"{len(broken)} inputs of {name} hold NaN, the first is example {int(broken[0])}.")
