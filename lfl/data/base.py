"""The contract between data modules and the training engine: how clients' examples are found and batched."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch
from lightning import LightningDataModule
from torch import Tensor

from lfl.data.partition import Partition

Batch: TypeAlias = Any
"""The nest that an item is; each tensor's first dimensions are those of the positions that were asked for."""


class FederatedData(LightningDataModule, ABC):
    """Base class of data modules for federated training; with Lightning's own trainer they serve the pooled data.

    A subclass sets the attributes below (``partition`` in ``setup``), and implements the abstract methods and
    Lightning's dataloaders. An example is identified by its position in the training or test set.

    Attributes:
        num_clients: number of clients in the federation (N).
        batch_size: number of examples of one client in one step.
        num_classes: number of classes; 0 for regression.
        partition: which client has which examples.
        train_labels: class of each training example [n]; None if examples have no classes, or nobody has said.
    """

    num_clients: int
    batch_size: int
    num_classes: int
    partition: Partition
    train_labels: Tensor | None = None

    @property
    def client_sizes(self) -> Tensor:
        """Number of training examples of each client, [N] int64."""
        return self.partition.sizes

    @property
    def client_test_sizes(self) -> Tensor:
        """Number of test examples of each client, [N] int64; a client may have none."""
        return self.partition.test_sizes

    def label_counts(self) -> Tensor:
        """Number of each client's training examples of each class, [N, K] int64.

        Raises:
            ValueError: examples have no classes.
        """
        if self.train_labels is None:
            raise ValueError(f"The training examples of {type(self).__name__} have no class labels.")
        return self.partition.label_counts(self.train_labels, int(self.train_labels.max()) + 1)

    def client_indices(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the training examples of clients ``ids`` [C].

        Returns:
            Positions [C, n_max], padded with 0, and the number of examples of each client [C].
        """
        return self.partition.train.padded(ids)

    def client_test_indices(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the test examples of clients ``ids`` [C]; otherwise like ``client_indices``."""
        return self.partition.test.padded(ids)

    def describe(self) -> dict[str, int | float | str]:
        """Facts about the data for the log, by name."""
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
    def is_collated(self) -> bool:
        """Whether a function of the user makes batches, which may pad an example as the others of its batch need it."""
        return False

    @property
    @abstractmethod
    def has_random_transforms(self) -> bool:
        """Whether training batches hold draws, of transforms or of a data set, for which ``gather`` needs keys."""

    @abstractmethod
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Moves the data in memory to ``device`` and floating-point numbers to ``dtype``; may be called again."""

    @abstractmethod
    def gather(self, indices: Tensor, keys: Tensor | None = None) -> Batch:
        """Make a training batch for C clients.

        Args:
            indices: positions in the training set, (clients, examples) int64.
            keys: one int64 key for each example, of the same shape. Random transforms, and what a data set draws when
                it is read, depend on nothing else. May be None unless ``has_random_transforms``.

        Returns:
            A nest of tensors (clients, examples, ...) on the device of ``place``, and of ``Riders``.
        """

    @abstractmethod
    def batches(self, plan: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[Batch]:
        """Make the batch of each (indices, keys) of ``plan``, in order; data that is on disk is read ahead."""

    @abstractmethod
    def gather_test(self, indices: Tensor) -> Batch:
        """Make a batch of the test examples at ``indices`` (clients, examples), as ``gather`` does for training."""
