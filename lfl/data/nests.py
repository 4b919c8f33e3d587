"""Nests: what items and batches are made of.

A nest is a leaf, or a dict, tuple or list of nests. Leaves of items are tensors, arrays, numbers, lists of numbers,
strings and None; those of batches are tensors, and riders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node, tree_map_only
from torch.utils.data import default_collate

from lfl.data.columns import DataError

Path: TypeAlias = tuple[str | int, ...]
"""The path to a part of a nest: keys of dicts and places in tuples; () is the nest itself."""


class Riders(list[Any]):
    """Values that ride along in a batch and are no tensors: strings and None, one for each example.

    To whoever reads it a list. To torch's walks over nests one leaf, which can be indexed as the tensors beside it are.

    Example:
        >>> texts = Riders(["a", "b", "c", "d"]).shaped(torch.Size([2, 2]))
        >>> texts[1], texts[:, :1]
        (['c', 'd'], [['a'], ['c']])
    """

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            first, *rest = index
            picked = self[first]
            if not rest:
                return picked
            is_one = not isinstance(first, slice | Tensor)
            return picked[tuple(rest)] if is_one else Riders(row[tuple(rest)] for row in picked)
        if isinstance(index, Tensor) and index.dim():
            return Riders(self[i] for i in index.tolist())
        found = super().__getitem__(index)
        return Riders(found) if isinstance(index, slice) else found

    def shaped(self, shape: torch.Size) -> Riders:
        """Riders (n,) with their first dimension split into ``shape``, as lists of lists."""
        if len(shape) == 1:
            return self
        width = shape[1:].numel()
        return Riders(self[i * width : (i + 1) * width].shaped(shape[1:]) for i in range(shape[0]))


class Unread:
    """Stands for riders where clients are trained together, or steps are recorded: whoever reads it is told so."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("it reads strings of its batch, which only one client at a time can")

    __bool__ = __contains__ = __eq__ = __format__ = __getitem__ = __iter__ = __len__ = __str__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


# Without children, so that vmap and recordings see tensors only.
register_pytree_node(Unread, lambda _: ([], None), lambda _children, _context: Unread())


def without_riders(batch: Any) -> Any:
    """A batch with an ``Unread`` in the place of all riders."""
    parts = batch.values() if type(batch) is dict else batch if type(batch) is tuple else (batch,)
    if all(type(part) is Tensor for part in parts):  # faster than a walk
        return batch
    return tree_map_only(Riders, lambda _: Unread(), batch)


def part_of(nest: Any, path: Path) -> Any:
    """The part of a nest at ``path``; raises KeyError, IndexError or TypeError if there is none."""
    for key in path:
        nest = nest[key]
    return nest


def with_part(nest: Any, path: Path, part: Any) -> Any:
    """The nest with another part at ``path``; what is around it is copied, and the rest shared."""
    if not path:
        return part
    key, *rest = path
    inner = with_part(nest[key], tuple(rest), part)
    if isinstance(nest, Mapping):
        return {**nest, key: inner}
    entries = [*nest]
    entries[int(key)] = inner
    return _like(nest, entries)


def path_to(nest: Any, name: str | int) -> Path | None:
    """The path of a part: a key of a dict, a place in a tuple, or several of them with dots; None if there is none."""
    for path in ((name,), tuple(str(name).split("."))):
        inner, found = nest, []
        for key in path:
            if isinstance(inner, tuple | list) and str(key).isdigit():
                key = int(key)
            try:
                inner = inner[key]
            except (KeyError, IndexError, TypeError):
                break
            found.append(key)
        else:
            return tuple(found)
    return None


def leaves_of(nest: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of an item or a batch, each with its path; a list of numbers is a leaf."""
    if isinstance(nest, Riders):
        yield path, nest
    elif isinstance(nest, Mapping):
        for key, inner in nest.items():
            yield from leaves_of(inner, (*path, key))
    elif isinstance(nest, tuple) or (isinstance(nest, list) and not _is_row(nest)):
        for place, inner in enumerate(nest):
            yield from leaves_of(inner, (*path, place))
    else:
        yield path, nest


def is_numeric(leaf: Any) -> bool:
    """Whether a leaf of an item becomes a tensor."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "biuf"
    return isinstance(leaf, Tensor | int | float) or _is_row(leaf)


def rides(leaf: Any) -> bool:
    """Whether a leaf of an item rides along."""
    return leaf is None or isinstance(leaf, str | bytes)


def stacked(items: Sequence[Any], misfit: Callable[[Path, list[Any]], DataError], path: Path = ()) -> Any:
    """The batch of some items: each leaf stacked to a tensor (n, ...), riders in a list.

    Args:
        items: n nests of the same structure.
        misfit: makes the error for leaves that cannot be stacked, of their path and themselves.
        path: of the items, if they are parts of others.
    """
    first = items[0]
    try:
        if isinstance(first, Mapping):
            return {key: stacked([item[key] for item in items], misfit, (*path, key)) for key in first}
        if isinstance(first, tuple) or (isinstance(first, list) and not _is_row(first)):
            parts = zip(*items, strict=True)
            return _like(first, [stacked(part, misfit, (*path, place)) for place, part in enumerate(parts)])
        if rides(first):
            return Riders(items)
        if isinstance(first, list):
            return torch.stack([torch.as_tensor(item) for item in items])
        return default_collate(list(items))
    except DataError:
        raise  # of a part of the parts
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise misfit(path, list(items)) from error


def as_batch(nest: Any, count: int, path: Path = ()) -> Any:
    """Make a batch of what a ``collate_fn`` returned: mappings become dicts, lists of strings riders, all else tensors.

    Raises:
        ValueError: a part has not one row an example; the message says which and what it has.
    """
    if isinstance(nest, Mapping):
        return {key: as_batch(inner, count, (*path, key)) for key, inner in nest.items()}
    if isinstance(nest, list) and len(nest) == count and all(map(rides, nest)):
        return Riders(nest)
    if isinstance(nest, tuple) or (isinstance(nest, list) and not _is_row(nest)):
        return _like(nest, [as_batch(inner, count, (*path, place)) for place, inner in enumerate(nest)])
    if not is_numeric(nest):
        raise ValueError(f"{said(path)} that is a {type(nest).__name__}")
    leaf = torch.as_tensor(nest)
    if leaf.shape[:1] != (count,):
        raise ValueError(f"{said(path)} of shape {list(leaf.shape)}")
    return leaf


def joined(leaves: Sequence[Any]) -> Any:
    """Leaves of batches as one, with the examples of all of them."""
    if isinstance(leaves[0], Riders):
        return Riders(rider for leaf in leaves for rider in leaf)
    return torch.cat(list(leaves))


def said(path: Path) -> str:
    """The words for a part in an error: with its name, where it has one."""
    has_name = any(isinstance(key, str) for key in path)
    return f"a part {'.'.join(map(str, path))!r}" if has_name else "a part"


def _is_row(value: Any) -> bool:
    """Whether a list holds numbers, or lists of them: as the vectors and matrices of data sets without torch."""
    return isinstance(value, list) and (not value or isinstance(value[0], int | float) or _is_row(value[0]))


def _like(nest: Any, entries: list[Any]) -> Any:
    """A tuple or list of ``entries``; a named tuple where ``nest`` is one."""
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*entries)
    return tuple(entries) if isinstance(nest, tuple) else entries
