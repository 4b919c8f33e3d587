"""Which client has which examples: partitions, which can be saved, loaded, counted and plotted."""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class IndexSets:
    """One set of positions in a data set for each of N clients, stored in two tensors.

    Args:
        indices: positions, client after client, [total] int64.
        offsets: where each client's positions begin, [N + 1] int64: client i has
            ``indices[offsets[i]:offsets[i + 1]]``.

    Example:
        >>> sets = IndexSets.from_owners(torch.tensor([1, 0, 1]), num_clients=2)
        >>> sets.client(1), sets.sizes
        (tensor([0, 2]), tensor([1, 2]))
    """

    indices: Tensor
    offsets: Tensor

    @classmethod
    def from_owners(cls, owners: Tensor, num_clients: int, positions: Tensor | None = None) -> "IndexSets":
        """Make the sets in which example j belongs to client ``owners[j]``; they are disjoint and cover all examples.

        Args:
            owners: the client of each example, [n] int64.
            num_clients: number of clients (N); a client that owns nothing gets an empty set.
            positions: position of each example in the data set, [n] int64; 0..n-1 by default.
        """
        # Stable, so that each client's positions are in ascending order.
        order = owners.argsort(stable=True)
        sizes = torch.bincount(owners, minlength=num_clients)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return cls(order if positions is None else positions[order], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Tensor:
        """Number of examples of each client, [N] int64."""
        return self.offsets.diff()

    @property
    def owners(self) -> Tensor:
        """The client of each entry of ``indices``, [total] int64; computed at each call."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def client(self, i: int) -> Tensor:
        """Positions of client i's examples, as a view."""
        if not 0 <= i < len(self):
            raise IndexError(f"There is no client {i}: the partition has {len(self)}, counted from 0.")
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    def padded(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The positions of clients ``ids`` [C] as one tensor.

        Returns:
            Positions [C, n_max], padded with 0, and the number of each client's positions [C], on the device of
            ``ids``.
        """
        rows = ids.to(self.offsets.device)
        sizes = self.sizes[rows]
        column = torch.arange(int(sizes.max()) if len(sizes) else 0)
        is_used = column < sizes.unsqueeze(1)
        entry = torch.where(is_used, self.offsets[rows].unsqueeze(1) + column, 0)
        # Without any examples everything is padding, and `entry` is all zeros as it is; indexing would fail.
        positions = torch.where(is_used, self.indices[entry], 0) if len(self.indices) else entry
        return positions.to(ids.device), sizes.to(ids.device)

    def label_counts(self, labels: Tensor, num_classes: int) -> Tensor:
        """Number of each client's examples of each class, [N, num_classes] int64.

        Args:
            labels: class of each example of the whole data set, [n].
            num_classes: number of classes.
        """
        # One number for each pair (client, class), so that one `bincount` counts all pairs.
        cells = self.owners * num_classes + labels[self.indices].long()
        return torch.bincount(cells, minlength=len(self) * num_classes).reshape(len(self), num_classes)


@dataclass(frozen=True, eq=False)
class Partition:
    """The training and test examples of each client.

    Args:
        train: each client's positions in the training set.
        test: each client's positions in the test set.

    Raises:
        ValueError: the two have different numbers of clients.
    """

    train: IndexSets
    test: IndexSets

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test):
            raise ValueError(f"The partition has {len(self.train)} clients in training, {len(self.test)} in testing.")

    @property
    def num_clients(self) -> int:
        """Number of clients in the federation (N)."""
        return len(self.train)

    @property
    def sizes(self) -> Tensor:
        """Number of training examples of each client, [N] int64."""
        return self.train.sizes

    @property
    def test_sizes(self) -> Tensor:
        """Number of test examples of each client, [N] int64."""
        return self.test.sizes

    def client(self, i: int) -> Tensor:
        """Positions of client i's training examples."""
        return self.train.client(i)

    def label_counts(self, targets: Tensor, num_classes: int) -> Tensor:
        """Number of each client's training examples of each class, [N, num_classes] int64."""
        return self.train.label_counts(targets, num_classes)

    def fingerprint(self) -> str:
        """A hash of the partition: twelve hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=6)
        for tensor in self._tensors().values():
            # The lengths too, or entries could move from one tensor to the next without changing the hash.
            digest.update(len(tensor).to_bytes(8, "little"))
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the partition to a file; an older file stays until the new one is complete."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        torch.save(self._tensors(), temporary)
        os.replace(temporary, target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Partition":
        """Reads a partition that ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds no partition.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"There is no partition at {str(path)!r}; `Partition.save` writes one.")
        saved = torch.load(path, weights_only=True)
        names = ("train_indices", "train_offsets", "test_indices", "test_offsets")
        if not isinstance(saved, dict) or set(saved) != set(names):
            raise ValueError(f"{str(path)!r} holds no partition; it should be a file written by `Partition.save`.")
        train, train_offsets, test, test_offsets = (saved[name] for name in names)
        return cls(IndexSets(train, train_offsets), IndexSets(test, test_offsets))

    def plot(self, targets: Tensor, path: str | os.PathLike[str]) -> None:
        """Draws a heat map of the number of training examples of each class (rows) of each client (columns).

        Args:
            targets: class of each example of the training set, [n].
            path: file of the picture; its suffix gives the format.
        """
        # Not pyplot, which would keep the figure in memory and may ask for a display.
        from matplotlib.figure import Figure

        counts = self.label_counts(targets, int(targets.max()) + 1)
        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(counts.T.numpy(), aspect="auto", interpolation="nearest", cmap="viridis")
        figure.colorbar(image, label="training examples")
        title = f"{self.num_clients} clients of {int(self.sizes.min())} to {int(self.sizes.max())} examples"
        axes.set(xlabel="client", ylabel="class", title=title)
        figure.savefig(path)

    def _tensors(self) -> dict[str, Tensor]:
        return {
            "train_indices": self.train.indices,
            "train_offsets": self.train.offsets,
            "test_indices": self.test.indices,
            "test_offsets": self.test.offsets,
        }
