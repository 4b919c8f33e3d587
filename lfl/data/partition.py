"""Partitions: which client has which examples; they can be saved, loaded, counted and plotted."""

import hashlib
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lfl.data.partition_file import ClientId, PartitionError, check_there, read_csv, read_json, write_json
from lfl.storage.checkpoint_file import write_atomically

_TENSORS = ("train_indices", "train_offsets", "test_indices", "test_offsets")


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

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> "IndexSets":
        """Make the sets of clients that have the positions ``lists[0]``, ``lists[1]``, and so on."""
        sizes = torch.tensor([0, *map(len, lists)], dtype=torch.int64)
        return cls(torch.tensor([i for positions in lists for i in positions], dtype=torch.int64), sizes.cumsum(0))

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

    def lists(self) -> list[list[int]]:
        """The positions of each client, as ``from_lists`` takes them."""
        return [positions.tolist() for positions in self.indices.split(self.sizes.tolist())]

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

    def check(self, what: str, count: int) -> None:
        """Checks that the positions are of a data set of ``count`` examples, and that no two are equal.

        Raises:
            PartitionError: they are not; the message begins with ``what``.
        """
        outside = ((self.indices < 0) | (self.indices >= count)).nonzero().flatten()
        if len(outside):
            entry = int(outside[0])
            raise PartitionError(
                f"{what} example {int(self.indices[entry])} of client {int(self.owners[entry])} does not exist: there "
                f"are {count}, counted from 0."
            )
        order = self.indices.argsort(stable=True)
        twice = (self.indices[order].diff() == 0).nonzero().flatten()
        if len(twice):
            first, second = order[twice[0]], order[twice[0] + 1]
            raise PartitionError(
                f"{what} example {int(self.indices[first])} is dealt twice, to client {int(self.owners[first])} and to "
                f"client {int(self.owners[second])}: each may be dealt once."
            )

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
        users: ids of each client's natural groups (users, writers), where clients consist of such.
        classes: name of each class, by label, where the data names them.

    Raises:
        ValueError: the two have different numbers of clients.
    """

    train: IndexSets
    test: IndexSets
    users: tuple[tuple[ClientId, ...], ...] | None = None
    classes: tuple[str, ...] | None = None

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
        """Writes the partition to a file, as JSON if it ends so; an older file stays until the new one is complete.

        JSON has neither names of classes nor ids of users.

        Raises:
            OSError: the file cannot be written; for a full disk the message says how much space there is.
        """
        if Path(path).suffix.lower() == ".json":
            write_json(Path(path), self.train.lists(), self.test.lists())
            return
        names: dict[str, Any] = {}
        if self.users is not None:
            names["users"] = [list(ids) for ids in self.users]
        if self.classes is not None:
            names["classes"] = list(self.classes)
        write_atomically({**self._tensors(), **names}, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Partition":
        """Reads a partition that ``save`` wrote, or a file of one's own that ends in .json or .csv.

        JSON is ``{client: [positions]}`` or ``{"train": {client: [positions]}, "test": {client: [positions]}}``. CSV
        has the columns ``client,index`` or, with a header, ``client,index,split``. Clients are numbered from 0, or have
        ids, which become ``users``, in ascending order. Without test examples, all clients' sets of those are empty.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds no partition, or is damaged.
        """
        file = Path(path)
        check_there(file)
        if file.suffix.lower() not in (".json", ".csv"):
            return cls._load_saved(file)
        written = (read_json if file.suffix.lower() == ".json" else read_csv)(file)
        users = None if written.ids is None else tuple((client,) for client in written.ids)
        return cls(IndexSets.from_lists(written.train), IndexSets.from_lists(written.test), users)

    @classmethod
    def _load_saved(cls, path: Path) -> "Partition":
        remedy = "it should be a file written by `Partition.save`, or end in .json or .csv"
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()  # torch does not compare checksums
            saved = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # zipfile and torch raise many types
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise PartitionError(f"{str(path)!r} holds no partition, or is damaged ({reason}); {remedy}.") from error
        if damaged is not None:
            raise PartitionError(f"The partition {str(path)!r} is damaged in its part {damaged}: make it anew.")
        if not isinstance(saved, dict) or not set(_TENSORS) <= set(saved) <= {*_TENSORS, "users", "classes"}:
            raise PartitionError(f"{str(path)!r} holds no partition; {remedy}.")
        train, test = (IndexSets(saved[f"{name}_indices"], saved[f"{name}_offsets"]) for name in ("train", "test"))
        if not all(map(_is_consistent, (train, test))):
            raise PartitionError(f"{str(path)!r} holds no partition: its positions and offsets do not fit; {remedy}.")
        users, classes = saved.get("users"), saved.get("classes")
        return cls(
            train,
            test,
            None if users is None else tuple(map(tuple, users)),
            None if classes is None else tuple(classes),
        )

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


def _is_consistent(sets: IndexSets) -> bool:
    indices, offsets = sets.indices, sets.offsets
    are_whole = all(isinstance(t, Tensor) and t.dtype == torch.int64 and t.dim() == 1 for t in (indices, offsets))
    if not are_whole or not len(offsets):
        return False
    return int(offsets[0]) == 0 and int(offsets[-1]) == len(indices) and bool((offsets.diff() >= 0).all())
