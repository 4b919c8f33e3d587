"""One data set, ready for batches: resident tensors, or items that DataLoaders read."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from typing_extensions import override

from lfl.data.base import Batch
from lfl.data.sources import Data, TensorData, num_examples
from lfl.data.transforms import BatchTransform, Pipeline
from lfl.randomness import generator

_CHUNK = 4096  # examples transformed at a time when a whole data set is
Plan = Iterable[tuple[Tensor, Tensor | None]]


class Store(ABC):
    """Base: a data set with its transforms, from which batches are taken by position."""

    pipeline: Pipeline

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abstractmethod
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Says where batches are to be; floating-point numbers become ``dtype``."""

    @abstractmethod
    def gather(self, indices: Tensor, keys: Tensor | None) -> Batch:
        """The examples at ``indices`` (...), each part (..., *shape)."""

    @abstractmethod
    def batches(self, plan: Plan) -> Iterator[Batch]:
        """``gather`` for each item of the plan."""

    @abstractmethod
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """The whole data set, first to last; the last batch may be short."""


class TensorStore(Store):
    """A data set in memory. Whatever is not random has been applied to it beforehand.

    Args:
        data: the tensors.
        transforms: in order. Those before the first random one are applied here, once.
    """

    def __init__(self, data: TensorData, transforms: Sequence[BatchTransform]) -> None:
        once, self.pipeline = Pipeline(transforms).split()
        self.inputs, self.targets = data.inputs, data.targets
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
        device, flat = self.inputs.device, indices.reshape(-1)
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
        # Slices, which are views: an evaluation copies nothing.
        parts = zip(torch.split(self.inputs, batch_size), torch.split(self.targets, batch_size), strict=True)
        return ((self._transformed(x, None), y) for x, y in parts)

    def _transformed(self, x: Tensor, keys: Tensor | None) -> Tensor:
        if not self.pipeline.transforms:
            return x
        x = self.pipeline(x, keys)
        return x if self._dtype is None else _moved(x, x.device, self._dtype)


class DatasetStore(Store):
    """A data set that stays where it is, its items read when they are asked for.

    Args:
        dataset: map-style, its items tuples (input, target, ...) that torch's default collation can stack.
        transforms: in order, of whole batches of inputs; applied on the device of ``place``.
        num_workers: processes that read ahead; 0 reads in this one.
        seed: of the workers' own generators, for data sets that draw something themselves.
    """

    def __init__(
        self, dataset: Dataset[Any], transforms: Sequence[BatchTransform], num_workers: int = 0, seed: int = 0
    ) -> None:
        self.pipeline = Pipeline(transforms)
        self.dataset = dataset
        self.num_workers = num_workers
        self.seed = seed
        self._device = torch.device("cpu")
        self._dtype: torch.dtype | None = None

    @override
    def __len__(self) -> int:
        return num_examples(self.dataset)

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype

    @override
    def gather(self, indices: Tensor, keys: Tensor | None) -> Batch:
        items = default_collate([self.dataset[i] for i in indices.reshape(-1).tolist()])
        return self._finished(items, indices.shape, keys)

    @override
    def batches(self, plan: Plan) -> Iterator[Batch]:
        # The loader asks for positions before it hands out examples: the rest of each item waits in line.
        waiting: deque[tuple[torch.Size, Tensor | None]] = deque()

        def positions() -> Iterator[list[int]]:
            for indices, keys in plan:
                waiting.append((indices.shape, keys))
                yield indices.reshape(-1).tolist()

        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=positions(),  # read once, so that an iterator will do
            num_workers=self.num_workers,
            pin_memory=self._device.type == "cuda",
            generator=generator(self.seed, "dataloader"),
        )
        for items in loader:
            yield self._finished(items, *waiting.popleft())

    @override
    def in_order(self, batch_size: int) -> Iterator[Batch]:
        return self.batches((chunk, None) for chunk in torch.split(torch.arange(len(self)), batch_size))

    def _finished(self, items: Sequence[Tensor], shape: torch.Size, keys: Tensor | None) -> Batch:
        x, *others = (_moved(t, self._device, self._dtype) for t in items)
        x = self.pipeline(x, None if keys is None else keys.reshape(-1).to(self._device))
        return tuple(_shaped(t, shape) for t in (_moved(x, self._device, self._dtype), *others))


def make_store(data: Data, transforms: Sequence[BatchTransform], num_workers: int, seed: int) -> Store:
    """The store that fits: tensors stay in memory, any other data set is read by DataLoaders."""
    if isinstance(data, TensorData):
        return TensorStore(data, transforms)
    return DatasetStore(data, transforms, num_workers, seed)


class Loader:
    """An iterable with a length, which is all that Lightning's trainer asks of a loader.

    Args:
        start: begins a pass over the data.
        length: number of batches.
    """

    def __init__(self, start: Callable[[], Iterator[Batch]], length: int) -> None:
        self._start = start
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return self._start()


def _shaped(flat: Tensor, shape: torch.Size) -> Tensor:
    return flat.reshape(shape + flat.shape[1:])


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``tensor`` on ``device``; ``dtype`` is for floating-point numbers only."""
    is_cast = dtype is not None and tensor.is_floating_point()
    # Towards the CPU one must wait: the copy might be read before it is complete.
    return tensor.to(device, dtype if is_cast else tensor.dtype, non_blocking=device.type == "cuda")
