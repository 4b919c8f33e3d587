"""One data set plus a partitioner: the data of N clients."""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jsonargparse import lazy_instance
from jsonargparse.typing import NonNegativeInt, PositiveInt
from lightning import Trainer
from torch import Tensor
from torch.utils.data import Subset
from typing_extensions import override

from lfl.data.base import Batch, FederatedData
from lfl.data.partition import IndexSets, Partition
from lfl.data.partitioners import DirichletPartitioner, Partitioner, match_label_mix
from lfl.data.sources import MNIST5000, Data, Source, TensorData, groups_of, num_examples, targets_of
from lfl.data.stores import Loader, Store, make_store
from lfl.data.transforms import BatchTransform
from lfl.randomness import client_keys, generator

# Defaults that the command line can print, and change in part (`--data.partitioner.alpha 0.1`).
_SOURCE: Source = lazy_instance(MNIST5000)
_PARTITIONER: Partitioner = lazy_instance(DirichletPartitioner)


class FederatedDataModule(FederatedData):
    """Splits a data set among clients; `lightning.Trainer` sees the same data pooled.

    Data in memory is held once, as tensors, on the device that ``place`` names, and a batch is an index gather.
    Transforms in front of the first random one are applied once to the whole set.

    Args:
        source: where the examples come from.
        partitioner: how the training set is dealt to clients. Each client's test set follows its own mix of classes.
        num_clients: N, at most the number of training examples.
        batch_size: examples of one client in one step (of one process in one step, when trained centrally).
        eval_batch_size: examples at a time in validation, testing and prediction; changes nothing but memory and speed.
        val_fraction: share of the training examples, drawn before partitioning, that is held out for validation, from
            0 to below 1. With 0 nothing is held out, and validation uses the test set.
        train_transforms: of training batches, in order.
        test_transforms: of validation and test batches, in order; none may be random.
        seed: of the held-out examples, the partition, and the order and augmentation in central training.
        partition_path: a file written by ``Partition.save``, used instead of `partitioner`.
        num_workers: processes that read ahead, for data that is not in memory.

    Raises:
        ValueError: a value is out of range, or there is a random transform for testing.

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
        source: Source = _SOURCE,
        partitioner: Partitioner = _PARTITIONER,
        num_clients: PositiveInt = 100,
        batch_size: PositiveInt = 10,
        eval_batch_size: PositiveInt = 1000,
        val_fraction: float = 0.0,
        train_transforms: Sequence[BatchTransform] = (),
        test_transforms: Sequence[BatchTransform] = (),
        seed: int = 0,
        partition_path: str | None = None,
        num_workers: NonNegativeInt = 0,
    ) -> None:
        super().__init__()
        # From Python the lazy defaults would lack their attributes: real ones take their place.
        self.source: Source = MNIST5000() if source is _SOURCE else source
        self.partitioner: Partitioner = DirichletPartitioner() if partitioner is _PARTITIONER else partitioner
        self.num_clients = num_clients
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.val_fraction = val_fraction
        self.train_transforms = train_transforms
        self.test_transforms = test_transforms
        self.seed = seed
        self.partition_path = partition_path
        self.num_workers = num_workers
        self.num_classes = self.source.num_classes
        self._passes = 0
        self._stores: dict[str, Store] = {}
        self._check_settings()

    @override
    def prepare_data(self) -> None:
        self.source.check()
        self.source.prepare()

    @override
    def setup(self, stage: str | None = None) -> None:
        """Loads and partitions the data, once; ``stage`` makes no difference.

        Raises:
            FileNotFoundError: the data or the saved partition is not there.
            ValueError: the partition cannot be made, or the saved one is of other data.
        """
        del stage
        if self._stores:
            return
        self.source.check()
        train, test = self.source.load()
        held_out, kept = self._hold_out(num_examples(train))
        self.partition = self._load_partition(kept, test) if self.partition_path else self._make(train, kept, test)
        self._stores = {"train": self._store(train, self.train_transforms), "test": self._store(test)}
        self._stores["val"] = self._store(_subset(train, held_out)) if len(held_out) else self._stores["test"]

    @property
    @override
    def has_random_transforms(self) -> bool:
        return any(transform.draws for transform in self.train_transforms)

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
        return {"data": repr(self.source), **super().describe(), "partitioner": chosen}

    @override
    def train_dataloader(self) -> Loader:
        """All clients' examples pooled, in a new order in each epoch; the ranks of a central trainer share them."""
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
        pool = self.partition.train.indices.sort().values
        order = pool[torch.randperm(len(pool), generator=generator(self.seed, "central", epoch))]
        rank, world_size = self._ranks()
        # As in torch's DistributedSampler: the first examples come twice where ranks would differ in length.
        share = order[torch.arange(rank, math.ceil(len(order) / world_size) * world_size, world_size) % len(order)]
        chunks = torch.split(share, self.batch_size)
        return self.batches((chunk, client_keys(chunk, self.seed, "central", epoch)) for chunk in chunks)

    def _ranks(self) -> tuple[int, int]:
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if isinstance(trainer, Trainer) else (0, 1)

    def _hold_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Positions held out for validation and positions kept, both ascending."""
        if not self.val_fraction:
            return torch.empty(0, dtype=torch.int64), torch.arange(count)
        order = torch.randperm(count, generator=generator(self.seed, "validation"))
        number = round(self.val_fraction * count)
        if not 0 < number < count:
            raise ValueError(f"`val_fraction={self.val_fraction}` of {count} training examples is {number} examples.")
        return order[:number].sort().values, order[number:].sort().values

    def _make(self, train: Data, kept: Tensor, test: Data) -> Partition:
        targets, groups = targets_of(train), groups_of(train)
        kept_groups = None if groups is None else groups[kept]
        dealt = self.partitioner.split(targets[kept], kept_groups, self.num_clients, self.seed)
        sets = IndexSets(kept[dealt.indices], dealt.offsets)
        return Partition(sets, match_label_mix(sets, targets, targets_of(test), self.seed))

    def _load_partition(self, kept: Tensor, test: Data) -> Partition:
        partition = Partition.load(str(self.partition_path))
        if partition.num_clients != self.num_clients:
            raise ValueError(
                f"`partition_path={self.partition_path!r}` is for {partition.num_clients} clients, but "
                f"`num_clients={self.num_clients}`: set it to {partition.num_clients} or take another file."
            )
        parts = (("training", partition.train, kept), ("test", partition.test, torch.arange(num_examples(test))))
        for name, sets, positions in parts:
            if not torch.equal(sets.indices.sort().values, positions):
                raise ValueError(
                    f"`partition_path={self.partition_path!r}` deals {len(sets.indices)} {name} examples, but not the "
                    f"{len(positions)} that `source`, `val_fraction` and `seed` give: make the partition anew."
                )
        return partition

    def _store(self, data: Data, transforms: Sequence[BatchTransform] | None = None) -> Store:
        chosen = self.test_transforms if transforms is None else transforms
        return make_store(data, chosen, self.num_workers, self.seed)

    def _of(self, name: str) -> Store:
        if not self._stores:
            raise RuntimeError(f"{type(self).__name__} has no data yet: call `setup` first.")
        return self._stores[name]

    def _check_settings(self) -> None:
        for name in ("num_clients", "batch_size", "eval_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}={getattr(self, name)}` of FederatedDataModule must be at least 1.")
        if not 0 <= self.val_fraction < 1:
            raise ValueError(f"`val_fraction={self.val_fraction}` must be at least 0 and less than 1.")
        for transform in self.test_transforms:
            if transform.draws:
                raise ValueError(f"`test_transforms` holds {transform!r}, which is random; testing must not be.")


def _subset(data: Data, positions: Tensor) -> Data:
    return data.subset(positions) if isinstance(data, TensorData) else Subset(data, positions.tolist())
