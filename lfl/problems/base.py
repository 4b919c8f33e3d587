"""Data of a convex problem: every client has the same number of examples, all in memory."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.data.base import FederatedData
from lfl.data.partition import IndexSets, Partition
from lfl.data.stores import Loader

_TOGETHER = 2**14  # examples that are gathered at once


class ProblemData(FederatedData):
    """Client i has the rows ``[i n, (i + 1) n)`` of some tensors.

    A subclass builds ``self.examples`` in ``setup``: tensors whose first dimension is ``num_clients * n``.

    Args:
        num_clients: N.
        examples_per_client: n.
        batch_size: examples in one step; n for whole gradients.
    """

    num_classes = 0
    has_random_transforms = False
    examples: tuple[Tensor, ...]

    def __init__(self, num_clients: int, examples_per_client: int, batch_size: int) -> None:
        super().__init__()
        self.num_clients = num_clients
        self.examples_per_client = examples_per_client
        self.batch_size = batch_size
        total = num_clients * examples_per_client
        sets = IndexSets(torch.arange(total), torch.arange(num_clients + 1) * examples_per_client)
        self.partition = Partition(sets, sets)

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self.examples = tuple(tensor.to(device, dtype) for tensor in self.examples)

    @override
    def gather(self, indices: Tensor, keys: Tensor | None = None) -> tuple[Tensor, ...]:
        rows = indices.reshape(-1)  # index_select is twice as fast as indexing
        return tuple(tensor.index_select(0, rows).view(*indices.shape, *tensor.shape[1:]) for tensor in self.examples)

    @override
    def gather_test(self, indices: Tensor) -> tuple[Tensor, ...]:
        return self.gather(indices)

    @override
    def batches(self, plan: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, ...]]:
        for shape, group in itertools.groupby((indices for indices, _ in plan), key=lambda indices: indices.shape):
            while together := list(itertools.islice(group, max(1, _TOGETHER // max(1, shape.numel())))):
                yield from zip(*(part.unbind() for part in self.gather(torch.stack(together))), strict=True)

    @override
    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*self.examples), self.batch_size, shuffle=True
        )

    @override
    def val_dataloader(self) -> Any:
        return Loader(lambda: iter([self.examples]), 1)

    @override
    def test_dataloader(self) -> Any:
        return Loader(lambda: iter([self.examples]), 1)
