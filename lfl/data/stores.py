"""Stores make batches of one data set, from tensors in memory or from items that DataLoaders read."""

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from typing_extensions import override

from lfl.data.base import Batch
from lfl.data.columns import DataError
from lfl.data.examples import Examples, NestData, TensorData
from lfl.data.items import ItemReader, Request
from lfl.data.nests import Riders, leaves_of, part_of, with_part
from lfl.data.transforms import BatchTransform, Pipeline
from lfl.data.workers import Workers

_CHUNK = 4096  # examples at a time, when a whole data set is transformed: limits the memory for intermediate results
Plan = Iterable[tuple[Tensor, Tensor | None]]  # (positions, keys) of each batch


class Store(ABC):
    """Base class: a data set with its transforms, from which batches are taken by position.

    Attributes:
        is_read: whether items are read when batches need them; they may draw then.
        is_collated: whether a function of the user makes batches of items.
    """

    is_read: bool = False
    is_collated: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abstractmethod
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Sets the device of batches and the type of their floating-point numbers."""

    @abstractmethod
    def gather(self, indices: Tensor, keys: Tensor | None) -> Batch:
        """Make a batch of the examples at ``indices`` (...); each tensor of the batch is (..., *shape)."""

    @abstractmethod
    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Make the batch of each (positions, keys) of the plan, in order, as ``gather`` does."""

    @abstractmethod
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """The whole data set, first to last; the last batch may be short."""


class TensorStore(Store):
    """A data set in memory.

    Args:
        data: all its examples.
        transforms: transforms of inputs, in order; those before the first random one are applied here, once.
    """

    def __init__(self, data: TensorData | NestData, transforms: Sequence[BatchTransform]) -> None:
        once, self.pipeline = Pipeline(transforms).split()
        leaves, nest = tree_flatten(data.parts)
        self._leaves: list[Any] = leaves  # tensors (n, ...) and riders
        self._nest = None if isinstance(data, TensorData) else nest
        self._input = _leaf_at(data, transforms) if transforms else None
        if self._input is not None and once.transforms:
            chunks = torch.split(leaves[self._input], _CHUNK)
            self._leaves[self._input] = torch.cat([once(chunk, None) for chunk in chunks])
        self._dtype: torch.dtype | None = None
        self._device = torch.device("cpu")
        self._count = len(data)

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype, self._device = dtype, device
        self._leaves = [_moved(leaf, device, dtype) for leaf in self._leaves]

    @override
    def gather(self, indices: Tensor, keys: Tensor | None) -> Batch:
        device = self._device
        flat = indices.reshape(-1)
        if flat.device != device:
            flat = _moved(flat, device)
        picked = [leaf[flat] if isinstance(leaf, Riders) else leaf.index_select(0, flat) for leaf in self._leaves]
        if self._input is not None:
            flat_keys = None if keys is None else _moved(keys.reshape(-1), device)
            picked[self._input] = self._transformed(picked[self._input], flat_keys)
        return self._batch([_shaped(leaf, indices.shape) for leaf in picked])

    @override
    def batches(self, plan: Plan) -> Iterator[Batch]:
        return (self.gather(indices, keys) for indices, keys in plan)

    @override
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        for start in range(0, self._count, batch_size):
            # Views, so an evaluation copies no data.
            leaves = [leaf[start : start + batch_size] for leaf in self._leaves]
            if self._input is not None:
                leaves[self._input] = self._transformed(leaves[self._input], None)
            yield self._batch(leaves)

    def _batch(self, leaves: list[Any]) -> Batch:
        return tuple(leaves) if self._nest is None else tree_unflatten(leaves, self._nest)

    def _transformed(self, x: Tensor, keys: Tensor | None) -> Tensor:
        if not self.pipeline.transforms:
            return x
        x = self.pipeline(x, keys)
        # Once more, since a transform may change the type: `ToFloat` gives float32 whatever `place` asked for.
        return x if self._dtype is None else _moved(x, x.device, self._dtype)


class DatasetStore(Store):
    """A data set whose items are read when a batch needs them.

    What items draw depends on their keys; without keys, on their positions.

    Args:
        reader: reads items.
        transforms: transforms of batches of inputs, in order; applied on the device of ``place``.
        workers: processes that read ahead; None to let this process read.
    """

    is_read = True

    def __init__(
        self, reader: ItemReader, transforms: Sequence[BatchTransform], workers: Workers | None = None
    ) -> None:
        self.pipeline = Pipeline(transforms)
        self.reader, self.is_collated = reader, reader.format.collate_fn is not None
        self._workers = workers
        self._number = workers.add(reader) if workers is not None else 0
        self._device = torch.device("cpu")
        self._dtype: torch.dtype | None = None

    @override
    def __len__(self) -> int:
        return len(self.reader)

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    @override
    def gather(self, indices: Tensor, keys: Tensor | None) -> Batch:
        request = _request(indices, keys)
        return self._finished(self.reader.batch(request.places, request.rows), indices.shape, keys)

    @override
    def batches(self, plan: Plan) -> Iterator[Batch]:
        # Workers read several batches ahead. Meanwhile each batch's shape and keys wait in this queue.
        waiting: deque[tuple[torch.Size, Tensor | None]] = deque()
        number = self._number

        def requests() -> Iterator[Request]:
            for indices, keys in plan:
                waiting.append((indices.shape, keys))
                yield _request(indices, keys, number)

        read: Iterator[Batch]
        if self._workers is None:
            read = (self.reader.batch(request.places, request.rows) for request in requests())
        else:
            read = self._workers.read(requests(), pins=self._device.type == "cuda")
        for items in read:
            yield self._finished(items, *waiting.popleft())

    @override
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        return self.batches((chunk, None) for chunk in torch.split(torch.arange(len(self)), batch_size))

    def _finished(self, batch: Batch, shape: torch.Size, keys: Tensor | None) -> Batch:
        """A batch of the items that were read: moved to the device, transformed, and in the shape of the plan."""
        if self.pipeline.transforms:
            assert self.reader.input is not None
            x = _moved(part_of(batch, self.reader.input), self._device, self._dtype)
            x = self.pipeline(x, None if keys is None else keys.reshape(-1).to(self._device))
            batch = with_part(batch, self.reader.input, x)
        return tree_map(lambda part: _shaped(_moved(part, self._device, self._dtype), shape), batch)


class PartStore(Store):
    """A part of a data set, in which examples go by their positions in the whole.

    Args:
        store: of the part.
        positions: where in the whole its examples are [n].
        total: number of examples of the whole.
    """

    def __init__(self, store: Store, positions: Tensor, total: int) -> None:
        self._store = store
        self.is_read, self.is_collated = store.is_read, store.is_collated
        # Positions that are not in the part are asked for as padding, and whatever they give is not used.
        self._places = torch.zeros(total, dtype=torch.int64)
        self._places[positions] = torch.arange(len(positions))

    @override
    def __len__(self) -> int:
        return len(self._store)

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self._store.place(device, dtype)
        self._places = self._places.to(device)

    @override
    def gather(self, indices: Tensor, keys: Tensor | None) -> Batch:
        return self._store.gather(self._placed(indices), keys)

    @override
    def batches(self, plan: Plan) -> Iterator[Batch]:
        return self._store.batches((self._placed(indices), keys) for indices, keys in plan)

    @override
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        return self._store.in_order(batch_size)

    def _placed(self, indices: Tensor) -> Tensor:
        return self._places[indices.to(self._places.device)]


def make_store(data: Examples, transforms: Sequence[BatchTransform], workers: Workers | None, seed: int) -> Store:
    """Make the store for ``data``: tensors stay in memory, items are read by this process or by workers.

    Raises:
        DataError: there are transforms, and nobody said which part of an item they are for.
    """
    if isinstance(data, TensorData | NestData):
        return TensorStore(data, transforms)
    reader = ItemReader(data.dataset, data.name, seed, data.classes, data.has_labels, data.format)
    if transforms:
        one = reader.batch([(0, None)])
        if reader.input is None or not isinstance(part_of(one, reader.input), Tensor):
            raise _no_input(transforms, one)
    return DatasetStore(reader, transforms, workers)


class Loader:
    """An iterable with a length, which is all that Lightning's trainer needs of a dataloader.

    Args:
        start: begins a pass over the data and returns its batches.
        length: number of batches in a pass.
    """

    def __init__(self, start: Callable[[], Iterator[Batch]], length: int) -> None:
        self._start = start
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return self._start()


Limit: TypeAlias = int | float
"""At most so many batches, or such a share of them, as in Lightning."""


def limited(dataloaders: Any, limit: Limit, setting: str = "limit") -> Any:
    """The first batches of dataloaders.

    Args:
        dataloaders: one iterable of batches with a length, or a list of them.
        limit: at most so many batches of each (an int), or such a share of them (a float up to 1).
        setting: the name of the limit, for errors.

    Raises:
        ValueError: the share is less than one batch, so that nothing would be evaluated.
    """
    if isinstance(dataloaders, list | tuple):
        return [limited(loader, limit, setting) for loader in dataloaders]
    if isinstance(limit, float) and limit >= 1.0:
        return dataloaders
    count = len(dataloaders)
    length = int(limit * count) if isinstance(limit, float) else min(limit, count)
    if limit and count and not length:
        raise ValueError(
            f"`{setting}={limit}` of {count} batch(es) is less than one: use a larger share, a smaller "
            "`data.eval_batch_size`, or a whole number of batches; 0 for none."
        )
    return Loader(lambda: itertools.islice(dataloaders, length), length)


def _leaf_at(data: TensorData | NestData, transforms: Sequence[BatchTransform]) -> int:
    """The number of the leaf that transforms are for."""
    leaves, nest = tree_flatten(data.parts)
    numbers = tree_unflatten(range(len(leaves)), nest)
    found = None if data.input is None else part_of(numbers, data.input)
    if isinstance(found, int) and isinstance(leaves[found], Tensor):
        return found
    raise _no_input(transforms, numbers)


def _no_input(transforms: Sequence[BatchTransform], batch: Any) -> DataError:
    names = ", ".join(".".join(map(str, path)) for path, _ in leaves_of(batch))
    return DataError(
        f"The transforms {list(transforms)} are for one input, and items have the parts {names}: name one of them, a "
        "tensor, in `input` of the source."
    )


def _request(indices: Tensor, keys: Tensor | None, number: int = 0) -> Request:
    positions = indices.reshape(-1).tolist()
    drawn = [None] * len(positions) if keys is None else keys.reshape(-1).tolist()
    return Request(list(zip(positions, drawn, strict=True)), len(indices) if indices.dim() > 1 else 1, number)


def _shaped(flat: Any, shape: torch.Size) -> Any:
    """Examples (n, ...) with their first dimension split into ``shape``."""
    return flat.shaped(shape) if isinstance(flat, Riders) else flat.reshape(shape + flat.shape[1:])


def _moved(tensor: Any, device: torch.device, dtype: torch.dtype | None = None) -> Any:
    """``tensor`` on ``device``; floating-point numbers also become ``dtype``, and riders stay what they are."""
    if isinstance(tensor, Riders):
        return tensor
    is_cast = dtype is not None and tensor.is_floating_point()
    # A copy to the GPU need not be waited for, as whatever uses it is queued behind it. A copy to the CPU must be: it
    # could be read before it is complete.
    return tensor.to(device, dtype if is_cast else tensor.dtype, non_blocking=device.type == "cuda")
