"""The base of the problems' data: all clients have the same number of examples, and all are in memory."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.data.base import FederatedData
from lfl.data.partition import IndexSets, Partition
from lfl.data.stores import Loader

_AT_ONCE = 2**14  # examples that are gathered in one operation


class ProblemData(FederatedData):
    """Client i has the rows ``[i n, (i + 1) n)`` of the tensors ``examples``.

    A subclass builds ``self.examples`` in ``setup``: tensors whose first dimension is ``num_clients * n``.

    Args:
        num_clients: number of clients (N).
        examples_per_client: number of examples of each client (n).
        batch_size: examples in one step; n for full gradients.
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
        rows = indices.reshape(-1)  # flat, for `index_select`, which is twice as fast as indexing
        return tuple(tensor.index_select(0, rows).view(*indices.shape, *tensor.shape[1:]) for tensor in self.examples)

    @override
    def gather_test(self, indices: Tensor) -> tuple[Tensor, ...]:
        return self.gather(indices)

    @override
    def batches(self, plan: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, ...]]:
        # Batches are small, and gathering one costs little more than calling `gather`: read ahead many batches of one
        # shape with one call, and hand them out as views.
        for shape, group in itertools.groupby((indices for indices, _ in plan), key=lambda indices: indices.shape):
            while ahead := list(itertools.islice(group, max(1, _AT_ONCE // max(1, shape.numel())))):
                yield from zip(*(tensor.unbind() for tensor in self.gather(torch.stack(ahead))), strict=True)

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
