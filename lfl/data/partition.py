"""Which client has which examples: a thing that is saved, loaded, counted and plotted."""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class IndexSets:
    """One set of dataset positions for each of N clients, in compressed rows: two tensors, whatever N is.

    Args:
        indices: the positions, client after client, [total] int64.
        offsets: client i has ``indices[offsets[i]:offsets[i + 1]]``, [N + 1] int64.

    Example:
        >>> sets = IndexSets.from_owners(torch.tensor([1, 0, 1]), num_clients=2)
        >>> sets.client(1), sets.sizes
        (tensor([0, 2]), tensor([1, 2]))
    """

    indices: Tensor
    offsets: Tensor

    @classmethod
    def from_owners(cls, owners: Tensor, num_clients: int, positions: Tensor | None = None) -> "IndexSets":
        """The sets in which example j belongs to client ``owners[j]``: disjoint and covering by construction.

        Args:
            owners: clients' ids, [n] int64.
            num_clients: N; ids that own nothing get an empty set.
            positions: the examples' places in the data set, [n] int64; without it 0..n-1.
        """
        order = owners.argsort(stable=True)
        sizes = torch.bincount(owners, minlength=num_clients)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return cls(order if positions is None else positions[order], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Tensor:
        """Examples of each client, [N] int64."""
        return self.offsets.diff()

    @property
    def owners(self) -> Tensor:
        """The client of each entry of ``indices``, [total] int64; made anew at each call, not kept."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def client(self, i: int) -> Tensor:
        """Client i's positions, a view."""
        if not 0 <= i < len(self):
            raise IndexError(f"There is no client {i}: the partition has {len(self)}, counted from 0.")
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    def padded(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The positions of some clients side by side: indices [C, n_max], padded with 0, and sizes [C]; ids' device."""
        rows = ids.to(self.offsets.device)
        sizes = self.sizes[rows]
        column = torch.arange(int(sizes.max()) if len(sizes) else 0)
        is_used = column < sizes.unsqueeze(1)
        entry = torch.where(is_used, self.offsets[rows].unsqueeze(1) + column, 0)
        # A client that is all padding must not read from an empty tensor.
        found = torch.where(is_used, self.indices[entry], 0) if len(self.indices) else entry
        return found.to(ids.device), sizes.to(ids.device)

    def label_counts(self, labels: Tensor, num_classes: int) -> Tensor:
        """Examples of each class that each client has, [N, num_classes] int64, from the whole set's ``labels`` [n]."""
        cells = self.owners * num_classes + labels[self.indices].long()
        return torch.bincount(cells, minlength=len(self) * num_classes).reshape(len(self), num_classes)


@dataclass(frozen=True, eq=False)
class Partition:
    """Training and test examples of each client.

    Args:
        train: positions in the training set.
        test: positions in the test set, for the same clients.

    Raises:
        ValueError: the two are not for the same number of clients.
    """

    train: IndexSets
    test: IndexSets

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test):
            raise ValueError(f"The partition has {len(self.train)} clients in training, {len(self.test)} in testing.")

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def sizes(self) -> Tensor:
        """Training examples of each client, [N] int64."""
        return self.train.sizes

    @property
    def test_sizes(self) -> Tensor:
        """Test examples of each client, [N] int64."""
        return self.test.sizes

    def client(self, i: int) -> Tensor:
        """Positions of client i's training examples."""
        return self.train.client(i)

    def label_counts(self, targets: Tensor, num_classes: int) -> Tensor:
        """Training examples of each class that each client has, [N, num_classes] int64."""
        return self.train.label_counts(targets, num_classes)

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that differ where two partitions differ; for the log."""
        digest = hashlib.blake2b(digest_size=6)
        for tensor in self._tensors().values():
            digest.update(len(tensor).to_bytes(8, "little"))
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the partition to a file; an older one stays whole until the new one is complete."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        torch.save(self._tensors(), beside)
        os.replace(beside, target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Partition":
        """Reads what ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds something else.
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
        """Draws the training examples of each class (rows) that each client (columns) has, as a heat map.

        Args:
            targets: classes of the whole training set, [n].
            path: the picture to write; its suffix says the format.
        """
        # The object interface: pyplot would keep the figure, and ask for a display.
        from matplotlib.figure import Figure

        counts = self.label_counts(targets, int(targets.max()) + 1)
        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(counts.T.numpy(), aspect="auto", interpolation="nearest", cmap="viridis")
        figure.colorbar(image, label="training examples")
        smallest, largest = int(self.sizes.min()), int(self.sizes.max())
        title = f"{self.num_clients} clients of {smallest} to {largest} examples"
        axes.set(xlabel="client", ylabel="class", title=title)
        figure.savefig(path)

    def _tensors(self) -> dict[str, Tensor]:
        return {
            "train_indices": self.train.indices,
            "train_offsets": self.train.offsets,
            "test_indices": self.test.indices,
            "test_offsets": self.test.offsets,
        }
