"""Columns: a target or a group of every example, from whatever data sets hold them in."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

Column: TypeAlias = Tensor | NDArray[np.str_]
"""One entry an example, (n, ...): numbers, or names (n,)."""


class DataError(ValueError):
    """Data that cannot be used. The message is one line: which entry, what is wrong, what to do."""


def column_of(dataset: Dataset[Any], attribute: str, name: str) -> Column | None:
    """The attribute ``targets`` or ``groups`` of a data set, with an entry for each example.

    torch's ``Subset``, ``ConcatDataset`` and ``TensorDataset`` have no such attributes: theirs follow from what they
    wrap.

    Returns:
        The column; None if the data set has no such attribute.

    Raises:
        DataError: it has not one entry an example, or entries that are neither numbers nor names.
    """
    values = getattr(dataset, attribute, None)
    if values is None:
        return _column_of_wrapped(dataset, attribute, name)
    column = as_column(values, f"`{attribute}` of {name}")
    count = len(dataset)  # type: ignore[arg-type]
    if column.ndim == 0 or len(column) != count:
        raise DataError(
            f"`{attribute}` of {name} has {len(column) if column.ndim else 'no'} entries, but {type(dataset).__name__} "
            f"has {count} examples: give it `{attribute}` with one entry for each example, its own if it wraps another "
            "data set."
        )
    return column


def as_column(values: Any, name: str) -> Column:
    """A tensor of numbers or an array of names, of a list, an array, a tensor or a pandas column.

    Raises:
        DataError: the values are of another type, or their shapes differ.
    """
    if isinstance(values, Tensor):
        if values.is_complex():
            raise DataError(f"{name} are {values.dtype}: they must be real numbers or names.")
        return values.detach().cpu()
    if isinstance(values, dict | set) or callable(values):
        raise DataError(f"{name} is a {type(values).__name__}: it must be a tensor, an array or a list.")
    are_tensors = isinstance(values, list | tuple) and values and all(isinstance(value, Tensor) for value in values)
    if are_tensors and len({value.shape for value in values}) == 1:
        return as_column(torch.stack(list(values)), name)
    try:
        array = np.asarray(values)
    except ValueError as error:  # entries of different lengths
        shapes = [np.shape(value) for value in values]
        other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
        raise DataError(
            f"Entry {other} of {name} has the shape {list(shapes[other])}, entry 0 {list(shapes[0])}: they must be "
            "equal."
        ) from error
    return _as_names(array, name) if array.dtype.kind in "OSU" else _as_tensor(array, name)


def as_labels(column: Tensor) -> Tensor:
    """Class labels (n,) int64, of (n,) or (n, 1) whole numbers; all else stays as it is."""
    if column.is_floating_point() or not (column.dim() == 1 or (column.dim() == 2 and column.shape[1] == 1)):
        return column
    return column.reshape(-1).long()


def is_label(column: Tensor) -> bool:
    """Whether a column holds one whole number an example."""
    return column.dim() == 1 and not column.is_floating_point()


def names_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """The different names in columns, in ascending order; a name's place is its number."""
    return tuple(np.unique(np.concatenate([column for column in columns if isinstance(column, np.ndarray)])).tolist())


def encoded(column: Column, names: tuple[str, ...] | None, name: str) -> Tensor:
    """The number of each name in a column; numbers stay as they are.

    Raises:
        DataError: a name is none of ``names``.
    """
    if isinstance(column, Tensor):
        return column
    numbers = {known: number for number, known in enumerate(names or ())}
    unknown = next(((i, value) for i, value in enumerate(column.tolist()) if value not in numbers), None)
    if unknown is not None:
        raise DataError(
            f"Example {unknown[0]} of {name} has {unknown[1]!r}, which no training example has: remove such "
            "examples, or add some to the training set."
        )
    return torch.tensor([numbers[value] for value in column.tolist()], dtype=torch.int64)


def check_numbers(column: Tensor, what: str, name: str) -> None:
    """Raises DataError for NaN among one number an example."""
    if column.is_floating_point() and column.dim() == 1 and bool(column.isnan().any()):
        first = int(column.isnan().nonzero()[0])
        raise DataError(f"The {what} of example {first} of {name} is NaN: remove such examples, or fill in a number.")


def _column_of_wrapped(dataset: Dataset[Any], attribute: str, name: str) -> Column | None:
    # A subclass with items of its own may have changed the targets too.
    read = type(dataset).__getitem__
    if isinstance(dataset, TensorDataset) and read is TensorDataset.__getitem__ and attribute == "targets":
        return as_column(dataset.tensors[1], f"targets of {name}") if len(dataset.tensors) > 1 else None
    if isinstance(dataset, Subset) and read is Subset.__getitem__:
        inner = column_of(dataset.dataset, attribute, f"the data set in {name}")
        return None if inner is None else inner[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset) and read is ConcatDataset.__getitem__:
        parts = [column_of(part, attribute, f"data set {i} in {name}") for i, part in enumerate(dataset.datasets)]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if len(tensors) == len(parts):
            return torch.cat(tensors)
        return np.concatenate(arrays) if len(arrays) == len(parts) else None
    return None


def _as_tensor(array: NDArray[Any], name: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} are {array.dtype}: they must be real numbers or names.")
    # A copy in the machine's own order of bytes, without strides and types that torch has not, or has in part.
    kind = np.dtype(np.int64) if array.dtype.kind == "u" and array.dtype.itemsize > 1 else array.dtype
    return torch.from_numpy(np.array(array, dtype=kind.newbyteorder("=")))


def _as_names(array: NDArray[Any], name: str) -> Column:
    values = [value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()]
    if array.dtype.kind == "O" and values and all(isinstance(v, int | float | np.number) for v in values):
        return _as_tensor(np.array(values).reshape(array.shape), name)
    are_names = [isinstance(value, str) for value in values]
    if not all(are_names):
        # The first that is neither name nor number, or else the first that is not like those before.
        odd = (i for i, value in enumerate(values) if not isinstance(value, str | int))
        place = next(odd, are_names.index(not are_names[0]) if any(are_names) else 0)
        wrong = place, values[place]
        raise DataError(
            f"Entry {wrong[0]} of {name} is {str(wrong[1])[:40]!r}, a {type(wrong[1]).__name__}: all must be "
            "numbers, or all names (str)."
        )
    if array.ndim > 1 and array.size != len(array):
        raise DataError(f"{name} are names of shape {list(array.shape)}: there must be one name an example.")
    return np.array(values, dtype=np.str_)
