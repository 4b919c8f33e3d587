"""What a round needs to know of the data; the contract between data modules and the training engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import torch
from lightning import LightningDataModule
from torch import Tensor

from lfl.data.partition import Partition

Batch: TypeAlias = tuple[Tensor, ...]
"""(inputs, targets, ...), each with the leading dimensions of the positions that were asked for."""


class FederatedData(LightningDataModule, ABC):
    """Base of the data modules that serve clients; its Lightning side serves the pooled data to `lightning.Trainer`.

    A subclass sets the attributes below, the last of them in ``setup``, and implements the abstract methods and
    Lightning's loaders. An example's address is its position in the (training or test) data set.

    Attributes:
        num_clients: N.
        batch_size: examples of one client in one step.
        num_classes: number of classes, 0 for a regression.
        partition: which client has which examples.
    """

    num_clients: int
    batch_size: int
    num_classes: int
    partition: Partition

    @property
    def client_sizes(self) -> Tensor:
        """Training examples of each client, [N] int64."""
        return self.partition.sizes

    @property
    def client_test_sizes(self) -> Tensor:
        """Test examples of each client, [N] int64; a client may have none."""
        return self.partition.test_sizes

    def client_indices(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the training examples of clients ``ids`` [C]: [C, n_max] padded with 0, and sizes [C]."""
        return self.partition.train.padded(ids)

    def client_test_indices(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the test examples of clients ``ids`` [C]: [C, n_max] padded with 0, and sizes [C]."""
        return self.partition.test.padded(ids)

    def describe(self) -> dict[str, int | float | str]:
        """Facts for the log, one line each."""
        sizes = self.partition.sizes
        return {
            "clients": self.num_clients,
            "train_examples": int(sizes.sum()),
            "test_examples": int(self.partition.test_sizes.sum()),
            "smallest_client": int(sizes.min()),
            "median_client": int(sizes.median()),
            "largest_client": int(sizes.max()),
            "partition": self.partition.fingerprint(),
        }

    @property
    @abstractmethod
    def has_random_transforms(self) -> bool:
        """Whether ``gather`` needs keys."""

    @abstractmethod
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Moves what is in memory to ``device``, floating-point numbers to ``dtype``; again is no harm."""

    @abstractmethod
    def gather(self, indices: Tensor, keys: Tensor | None = None) -> Batch:
        """A training batch for C clients.

        Args:
            indices: positions in the training set, (clients, examples) int64.
            keys: one int64 key for each example, of the same shape: all that augmentation may depend on. None will do
                unless ``has_random_transforms``.

        Returns:
            Inputs, targets (and what else the data has), each (clients, examples, ...), on the device of ``place``.
        """

    @abstractmethod
    def batches(self, plan: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[Batch]:
        """``gather`` for each (indices, keys) of ``plan``, in order; data that is read from disk is read ahead."""

    @abstractmethod
    def gather_test(self, indices: Tensor) -> Batch:
        """Test examples at ``indices`` (clients, examples), as ``gather`` gives training examples."""
