"""The data module of a federation: one data set, split among N clients by a partitioner."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning import Trainer
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_number, fresh_default, lazy_default
from lfl.data.base import Batch, FederatedData
from lfl.data.client_changes import ClientChange, changed
from lfl.data.examined import examined
from lfl.data.examples import Examples, merged
from lfl.data.matching import keeps_groups_whole, match_groups, match_label_mix, split_each, users_of
from lfl.data.partition import IndexSets, Partition
from lfl.data.partition_file import check_there
from lfl.data.partitioners import DirichletPartitioner, Partitioner
from lfl.data.sources import MNIST5000, Source
from lfl.data.stores import Loader, PartStore, Store, make_store
from lfl.data.transforms import BatchTransform
from lfl.data.workers import Workers
from lfl.randomness import client_keys, generator


class FederatedDataModule(FederatedData):
    """Splits a data set among clients. Lightning's own trainer sees the same data as one pool.

    Data that is in memory is kept once, as tensors on the training device. Transforms before the first random one are
    applied once, to the whole set.

    Args:
        source: where the examples come from.
        partitioner: how training examples are dealt to clients; a client's test examples follow its mix of classes.
        num_clients: number of clients in the federation (N), at most the number of training examples.
        batch_size: examples of one client in one step; in central training, of one process in one step.
        eval_batch_size: examples per batch of validation, testing and prediction; affects memory and speed only.
        val_fraction: share of the training examples held out for validation before partitioning, from 0 to below 1.
            With 0, validation uses the test set.
        train_transforms: transforms of training batches, in order.
        test_transforms: transforms of validation and test batches, in order; none may be random.
        seed: seed of the validation examples, the partition, and the order and augmentation in central training.
        partition_path: file used instead of ``partitioner``: written by ``Partition.save``, or JSON ``{client:
            [positions]}``, or CSV ``client,index``; see ``Partition.load``. It may leave examples out; if it names no
            test examples, they are dealt here.
        num_workers: number of processes that read ahead, from the first batch to the end of the run; for data that is
            not in memory.
        num_examples: deal only so many training examples, drawn by ``seed``; none for all.
        client_test_fraction: merge training and test set, deal all examples to clients, and test each client on this
            share of its own, drawn at random, as PFLlib does with 0.25; the server is tested on all of those.
            Positions, of a partition file too, are then those of the merged set, training examples first. None for the
            source's own test set.
        client_changes: changes of clients' examples that differ from client to client, in order; made once.

    Attributes:
        classes: name of each class, by label, where the data's labels are names.
        users: ids of each client's natural groups (users, writers), where clients consist of such.

    Raises:
        ValueError: a value is out of range, or a test transform is random.

    Example:
        >>> from lfl.data import Digits, IIDPartitioner
        >>> data = FederatedDataModule(Digits(), IIDPartitioner(), num_clients=50, batch_size=4)
        >>> data.setup("fit")
        >>> indices, sizes = data.client_indices(torch.tensor([7, 3]))
        >>> x, y = data.gather(indices[:, :4])
        >>> x.shape, y.shape
        (torch.Size([2, 4, 1, 8, 8]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        source: Source = lazy_default(MNIST5000),
        partitioner: Partitioner = lazy_default(DirichletPartitioner),
        num_clients: PositiveInt = 100,
        batch_size: PositiveInt = 10,
        eval_batch_size: PositiveInt = 1000,
        val_fraction: float = 0.0,
        train_transforms: Sequence[BatchTransform] = (),
        test_transforms: Sequence[BatchTransform] = (),
        seed: int = 0,
        partition_path: str | None = None,
        num_workers: NonNegativeInt = 0,
        num_examples: PositiveInt | None = None,
        client_test_fraction: float | None = None,
        client_changes: Sequence[ClientChange] = (),
    ) -> None:
        super().__init__()
        self.source = fresh_default(source)
        self.partitioner = fresh_default(partitioner)
        self.num_clients = num_clients
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.val_fraction = val_fraction
        self.train_transforms = train_transforms
        self.test_transforms = test_transforms
        self.seed = seed
        self.partition_path = partition_path
        self.num_workers = num_workers
        self.num_examples = num_examples
        self.client_test_fraction = client_test_fraction
        self.client_changes = client_changes
        self.num_classes = self.source.num_classes
        self._passes = 0  # over the pooled data, without a trainer to count epochs
        self._workers: Workers | None = None
        self._stores: dict[str, Store] = {}  # train, test and val; made in `setup`
        self._check_settings()

    @override
    def prepare_data(self) -> None:
        if self.partition_path is not None:
            check_there(self.partition_path)
        self.source.check()
        self.source.prepare()

    @override
    def setup(self, stage: str | None = None) -> None:
        """Loads and partitions the data, once for all stages.

        Raises:
            FileNotFoundError: the data or the saved partition is missing.
            ValueError: the data does not fit together, the partition cannot be made, or the one in the file belongs to
                other data.
        """
        del stage
        if self._stores:
            return
        self.source.check()
        train, test = self.source.load()
        train, test = examined(train, test, self.num_classes, type(self.source).__name__, format=self.source.format)
        if self.client_test_fraction is not None:
            train = merged(train, test)
        held_out, kept = self._hold_out(len(train))
        self._workers = Workers(self.num_workers) if self.num_workers else None
        if self.client_test_fraction is None:
            self.partition = self._partition(train, kept, test)
            train, test = self._changed(train, "train"), self._changed(test, "test")
            self._stores = {"train": self._store(train, self.train_transforms), "test": self._store(test)}
        else:
            self.partition = self._partition_of_pool(train, kept, self.client_test_fraction)
            train = self._changed(self._changed(train, "train"), "test")
            self._stores = {
                "train": self._store_of_part(train, self.partition.train, self.train_transforms),
                "test": self._store_of_part(train, self.partition.test),
            }
        is_classes = train.targets.dim() == 1 and not train.targets.is_floating_point()
        self.train_labels = train.targets if is_classes else None
        self._stores["val"] = self._store(train.subset(held_out)) if len(held_out) else self._stores["test"]

    @override
    def teardown(self, stage: str | None = None) -> None:
        """Ends the processes that read ahead, at the end of a run; the data stays."""
        del stage
        if self._workers is not None:
            self._workers.close()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Name of each class, by label; None if classes have no names."""
        return self.partition.classes

    @property
    def users(self) -> tuple[tuple[int | str, ...], ...] | None:
        """Ids of the natural groups that each client consists of; None if clients do not consist of groups."""
        return self.partition.users

    @property
    @override
    def has_random_transforms(self) -> bool:
        # Whether a data set draws cannot be known beforehand: items that are read get keys in any case.
        is_read = "train" in self._stores and self._stores["train"].is_read
        return is_read or any(transform.draws for transform in self.train_transforms)

    @property
    @override
    def is_collated(self) -> bool:
        return "train" in self._stores and self._stores["train"].is_collated

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        for name in ("train", "test", "val"):
            self._of(name).place(device, dtype)

    @override
    def gather(self, indices: Tensor, keys: Tensor | None = None) -> Batch:
        return self._of("train").gather(indices, keys)

    @override
    def batches(self, plan: Iterable[tuple[Tensor, Tensor | None]]) -> Iterator[Batch]:
        return self._of("train").batches(plan)

    @override
    def gather_test(self, indices: Tensor) -> Batch:
        return self._of("test").gather(indices, None)

    @override
    def describe(self) -> dict[str, int | float | str]:
        chosen = self.partition_path or repr(self.partitioner)
        changes = {"client_changes": repr([*self.client_changes])} if self.client_changes else {}
        return {"data": repr(self.source), **super().describe(), "partitioner": chosen, **changes}

    @override
    def train_dataloader(self) -> Loader:
        """The examples of all clients as one pool, in a new order in each epoch; for central training."""
        share = math.ceil(int(self.client_sizes.sum()) / self._ranks()[1])
        return Loader(self._pooled_epoch, math.ceil(share / self.batch_size))

    @override
    def val_dataloader(self) -> Loader:
        return self._eval_loader("val")

    @override
    def test_dataloader(self) -> Loader:
        return self._eval_loader("test")

    @override
    def predict_dataloader(self) -> Loader:
        return self._eval_loader("test")

    def _eval_loader(self, name: str) -> Loader:
        store = self._of(name)
        return Loader(lambda: store.in_order(self.eval_batch_size), math.ceil(len(store) / self.eval_batch_size))

    def _pooled_epoch(self) -> Iterator[Batch]:
        epoch = self.trainer.current_epoch if isinstance(self.trainer, Trainer) else self._passes
        self._passes += 1
        # Sorted, so that the order of central training does not depend on the partition.
        pool = self.partition.train.indices.sort().values
        order = pool[torch.randperm(len(pool), generator=generator(self.seed, "central", epoch))]
        rank, world_size = self._ranks()
        # As in torch's DistributedSampler: all processes need the same number of batches, or the last collective
        # operation would hang, so the first examples are used twice where the pool cannot be shared equally.
        share = order[torch.arange(rank, math.ceil(len(order) / world_size) * world_size, world_size) % len(order)]
        chunks = torch.split(share, self.batch_size)
        return self.batches((chunk, client_keys(chunk, self.seed, "central", epoch)) for chunk in chunks)

    def _ranks(self) -> tuple[int, int]:
        """Rank and number of the processes of a central trainer."""
        # lfl's own trainer deals clients to its processes, not examples: there, this process is the only one.
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if isinstance(trainer, Trainer) else (0, 1)

    def _hold_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Split the positions 0..count-1 into those held out for validation and those kept, both ascending."""
        if not self.val_fraction:
            return torch.empty(0, dtype=torch.int64), torch.arange(count)
        order = torch.randperm(count, generator=generator(self.seed, "validation"))
        num_held_out = round(self.val_fraction * count)
        if not 0 < num_held_out < count:
            raise ValueError(
                f"`val_fraction={self.val_fraction}` of {count} training examples is {num_held_out} examples."
            )
        return order[:num_held_out].sort().values, order[num_held_out:].sort().values

    def _partition(self, train: Examples, kept: Tensor, test: Examples) -> Partition:
        """Load or make the partition of the examples at positions ``kept`` of the training set, and of the test set."""
        found = self._load_partition(train, kept, test) if self.partition_path else None
        sets = self._deal(train, kept) if found is None else found.train
        by_groups = self._consists_of_groups(sets, train)
        dealt = (
            found.test
            if found is not None and len(found.test.indices)
            else self._deal_test(sets, train, test, by_groups)
        )
        users = users_of(sets, train) if by_groups else None
        return Partition(sets, dealt, users if found is None or found.users is None else found.users, train.classes)

    def _partition_of_pool(self, pool: Examples, kept: Tensor, fraction: float) -> Partition:
        """Load or make the partition of the examples at positions ``kept``, and of each client's own test examples."""
        found = self._load_partition_of_pool(pool, kept) if self.partition_path else None
        sets = self._deal(pool, kept) if found is None else found.train
        users = users_of(sets, pool) if self._consists_of_groups(sets, pool) else None
        if found is None or not len(found.test.indices):
            train, test = split_each(sets, fraction, self.seed)
        else:
            train, test = found.train, found.test
        if not len(test.indices):
            raise ValueError(
                f"`client_test_fraction={fraction}` leaves no client an example to be tested on: raise it."
            )
        return Partition(train, test, users if found is None or found.users is None else found.users, pool.classes)

    def _deal(self, train: Examples, kept: Tensor) -> IndexSets:
        if self.num_examples is not None:
            if self.num_examples > len(kept):
                raise ValueError(
                    f"`num_examples={self.num_examples}` but there are {len(kept)} training examples: lower it."
                )
            drawn = torch.randperm(len(kept), generator=generator(self.seed, "num_examples"))[: self.num_examples]
            kept = kept[drawn.sort().values]
        groups = None if train.groups is None else train.groups[kept]
        dealt = self.partitioner.split(train.targets[kept], groups, self.num_clients, self.seed)
        # The partitioner sees the kept examples only: its positions are translated into those of the whole set.
        return IndexSets(kept[dealt.indices], dealt.offsets)

    def _consists_of_groups(self, sets: IndexSets, train: Examples) -> bool:
        """Whether clients consist of natural groups: as the partitioner says, or as can be seen."""
        if train.groups is None:
            return False
        has_chosen = not self.partition_path and self.partitioner.uses_groups
        return has_chosen or keeps_groups_whole(sets, train.groups)

    def _deal_test(self, sets: IndexSets, train: Examples, test: Examples, by_groups: bool) -> IndexSets:
        if not by_groups or train.groups is None or test.groups is None:
            if by_groups:
                rank_zero_warn(
                    "The clients consist of natural groups, but the test set has no `groups`: clients are tested on "
                    "their mix of classes, not on examples of their own groups."
                )
            return match_label_mix(sets, train.targets, test.targets, self.seed)
        dealt = match_groups(sets, train.groups, test.groups, self.seed)
        _say_how_many_are_left(len(test) - len(dealt.indices), len(test), "test", "no client trains on their groups")
        return dealt

    def _load_partition_of_pool(self, pool: Examples, kept: Tensor) -> Partition:
        """Load the partition of a file for the merged set, and check it: nothing may be in training and testing."""
        path, partition = self._read_partition(pool)
        owners = torch.cat([partition.train.owners, partition.test.owners])
        indices = torch.cat([partition.train.indices, partition.test.indices])
        IndexSets.from_owners(owners, self.num_clients, indices).check(f"{path}: merged", len(pool))
        self._check_kept(path, indices, kept)
        return partition

    def _load_partition(self, train: Examples, kept: Tensor, test: Examples) -> Partition:
        """Load the partition of a file, and check that it deals examples that this data has, each once."""
        path, partition = self._read_partition(train)
        partition.train.check(f"{path}: training", len(train))
        partition.test.check(f"{path}: test", len(test))
        self._check_kept(path, partition.train.indices, kept)
        if len(partition.test.indices):
            _say_how_many_are_left(
                len(test) - len(partition.test.indices), len(test), "test", f"{path} leaves them out"
            )
        return partition

    def _read_partition(self, train: Examples) -> tuple[str, Partition]:
        """The file's name for messages, and its partition, which is for these clients and classes."""
        path = f"`partition_path={self.partition_path!r}`"
        partition = Partition.load(str(self.partition_path))
        if partition.num_clients != self.num_clients:
            raise ValueError(
                f"{path} is for {partition.num_clients} clients, but "
                f"`num_clients={self.num_clients}`: set it to {partition.num_clients} or take another file."
            )
        if partition.classes is not None and partition.classes != train.classes:
            raise ValueError(f"{path} is for the classes {partition.classes}, the data has {train.classes}.")
        return path, partition

    def _check_kept(self, path: str, dealt: Tensor, kept: Tensor) -> None:
        """Check that a file deals no examples that are held out for validation, and say how many it leaves out."""
        num_held_out = int((~torch.isin(dealt, kept)).sum())
        if num_held_out:
            raise ValueError(
                f"{path} deals {len(dealt)} training examples, but {num_held_out} of them are not "
                f"among the {len(kept)} that `source`, `val_fraction` and `seed` give: make the partition anew."
            )
        _say_how_many_are_left(len(kept) - len(dealt), len(kept), "training", f"{path} leaves them out")

    def _store(self, data: Examples, transforms: Sequence[BatchTransform] | None = None) -> Store:
        chosen = self.test_transforms if transforms is None else transforms
        return make_store(data, chosen, self._workers, self.seed)

    def _store_of_part(
        self, pool: Examples, part: IndexSets, transforms: Sequence[BatchTransform] | None = None
    ) -> Store:
        """A store of the clients' examples in a part of the pool, by their positions in the pool."""
        positions = part.indices.sort().values
        return PartStore(self._store(pool.subset(positions), transforms), positions, len(pool))

    def _changed(self, data: Examples, part: str) -> Examples:
        return changed(data, getattr(self.partition, part), self.client_changes, self.seed, part)

    def _of(self, name: str) -> Store:
        if not self._stores:
            raise RuntimeError(f"{type(self).__name__} has no data yet: call `setup` first.")
        return self._stores[name]

    def _check_settings(self) -> None:
        for name in ("num_clients", "batch_size", "eval_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}={getattr(self, name)}` of FederatedDataModule must be at least 1.")
        check_number("FederatedDataModule", "num_workers", self.num_workers, least=0, whole=True)
        if self.num_examples is not None and self.partition_path:
            raise ValueError(f"`num_examples={self.num_examples}` and `partition_path` both say which examples to use.")
        if self.num_examples is not None and self.num_examples < 1:
            raise ValueError(f"`num_examples={self.num_examples}` of FederatedDataModule must be at least 1, or none.")
        if self.client_test_fraction is not None and not 0 < self.client_test_fraction < 1:
            raise ValueError(
                f"`client_test_fraction={self.client_test_fraction}` must be greater than 0 and less than 1, or none."
            )
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"`val_fraction={self.val_fraction}` must be at least 0 and less than 1.")
        for transform in self.test_transforms:
            if transform.draws:
                raise ValueError(f"`test_transforms` holds {transform!r}, which is random; testing must not be.")


def _say_how_many_are_left(count: int, total: int, kind: str, reason: str) -> None:
    if count:
        rank_zero_info(f"{count} of {total} {kind} examples belong to no client: {reason}.")
