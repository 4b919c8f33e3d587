"""Stores make batches of one data set, from tensors in memory or from items that DataLoaders read."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lfl.data.base import Batch
from lfl.data.columns import DataError
from lfl.data.examples import Examples, TensorData
from lfl.data.items import ItemReader, Place
from lfl.data.transforms import BatchTransform, Pipeline

_CHUNK = 4096  # examples at a time, when a whole data set is transformed: limits the memory for intermediate results
Plan = Iterable[tuple[Tensor, Tensor | None]]  # (positions, keys) of each batch


class Store(ABC):
    """Base class: a data set with its transforms, from which batches are taken by position."""

    pipeline: Pipeline

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
        data: inputs and targets.
        transforms: transforms of inputs, in order; those before the first random one are applied here, once.
    """

    def __init__(self, data: TensorData, transforms: Sequence[BatchTransform]) -> None:
        once, self.pipeline = Pipeline(transforms).split()
        self.inputs = data.inputs
        self.targets = data.targets
        if once.transforms:
            self.inputs = torch.cat([once(chunk, None) for chunk in torch.split(data.inputs, _CHUNK)])
        self._dtype: torch.dtype | None = None

    @override
    def __len__(self) -> int:
        return len(self.targets)

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.inputs, self.targets = (_moved(t, device, dtype) for t in (self.inputs, self.targets))

    @override
    def gather(self, indices: Tensor, keys: Tensor | None) -> Batch:
        device = self.inputs.device
        flat = indices.reshape(-1)
        if flat.device != device:
            flat = _moved(flat, device)
        flat_keys = None if keys is None else _moved(keys.reshape(-1), device)
        x = self._transformed(self.inputs.index_select(0, flat), flat_keys)
        y = self.targets.index_select(0, flat)
        return _shaped(x, indices.shape), _shaped(y, indices.shape)

    @override
    def batches(self, plan: Plan) -> Iterator[Batch]:
        return (self.gather(indices, keys) for indices, keys in plan)

    @override
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        # `split` gives views, so an evaluation copies no data.
        chunks = zip(torch.split(self.inputs, batch_size), torch.split(self.targets, batch_size), strict=True)
        return ((self._transformed(x, None), y) for x, y in chunks)

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
        reader: reads items (input, target, ...) that torch's default collation can stack.
        transforms: transforms of batches of inputs, in order; applied on the device of ``place``.
        num_workers: number of processes that read ahead; with 0, this process reads.
    """

    def __init__(self, reader: ItemReader, transforms: Sequence[BatchTransform], num_workers: int = 0) -> None:
        self.pipeline = Pipeline(transforms)
        self.reader = reader
        self.num_workers = num_workers
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
        return self._finished(self.reader.batch(_places(indices, keys)), indices.shape, keys)

    @override
    def batches(self, plan: Plan) -> Iterator[Batch]:
        # The loader's workers read several batches ahead, and it returns batches in the order of the plan. Meanwhile
        # each batch's shape and keys wait in this queue.
        waiting: deque[tuple[torch.Size, Tensor | None]] = deque()

        def places() -> Iterator[list[Place]]:
            for indices, keys in plan:
                waiting.append((indices.shape, keys))
                yield _places(indices, keys)

        _ = self.reader.generators  # found here, once, and not by each worker again
        loader: DataLoader[Any] = DataLoader(
            self.reader,
            batch_sampler=places(),  # read once, so an iterator of batches is enough
            num_workers=self.num_workers,
            collate_fn=_as_read,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # or the loader would draw from the global one
        )
        for items in loader:
            if isinstance(items, DataError):
                raise items
            yield self._finished(items, *waiting.popleft())

    @override
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        return self.batches((chunk, None) for chunk in torch.split(torch.arange(len(self)), batch_size))

    def _finished(self, items: Sequence[Tensor], shape: torch.Size, keys: Tensor | None) -> Batch:
        """A batch of the items that a loader read: moved to the device, transformed, and in the shape of the plan."""
        x, *others = (_moved(tensor, self._device, self._dtype) for tensor in items)
        x = self.pipeline(x, None if keys is None else keys.reshape(-1).to(self._device))
        return tuple(_shaped(tensor, shape) for tensor in (_moved(x, self._device, self._dtype), *others))


def make_store(data: Examples, transforms: Sequence[BatchTransform], num_workers: int, seed: int) -> Store:
    """Make the store for ``data``: a ``TensorData`` stays in memory, items are read by DataLoaders."""
    if isinstance(data, TensorData):
        return TensorStore(data, transforms)
    return DatasetStore(
        ItemReader(data.dataset, data.name, seed, data.classes, data.has_labels), transforms, num_workers
    )


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


def _places(indices: Tensor, keys: Tensor | None) -> list[Place]:
    positions = indices.reshape(-1).tolist()
    return list(zip(positions, [None] * len(positions) if keys is None else keys.reshape(-1).tolist(), strict=True))


def _as_read(batch: Any) -> Any:
    """Instead of DataLoader's collation: the reader has stacked the items."""
    return batch


def _shaped(flat: Tensor, shape: torch.Size) -> Tensor:
    """Examples (n, ...) with their first dimension split into ``shape``."""
    return flat.reshape(shape + flat.shape[1:])


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``tensor`` on ``device``; floating-point numbers also become ``dtype``."""
    is_cast = dtype is not None and tensor.is_floating_point()
    # A copy to the GPU need not be waited for, as whatever uses it is queued behind it. A copy to the CPU must be: it
    # could be read before it is complete.
    return tensor.to(device, dtype if is_cast else tensor.dtype, non_blocking=device.type == "cuda")
