"""The partitioners of Flower's ``flwr_datasets``, https://flower.ai/docs/datasets, on any data with class labels."""

import inspect
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lfl.data.partitioners import Partitioner, class_labels
from lfl.randomness import derive_seed, generator


class FlowerPartitioner(Partitioner):
    """Deals examples as a partitioner of ``flwr_datasets`` does, which sees a shuffled data set of the labels alone.

    Its arguments ``num_partitions``, ``partition_by`` and ``seed`` are set: to the number of clients, the column of the
    labels, and a seed that is made of the data module's.

    Args:
        kind: such as ``flwr_datasets.partitioner.PathologicalPartitioner``, or another class with its two methods.
        options: other arguments of it, such as ``{num_classes_per_partition: 2}``.

    Raises:
        ValueError: the class refuses its arguments or the data, or makes other than ``num_clients`` partitions.
    """

    def __init__(self, kind: type, options: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self.options = options or {}

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        from datasets import Dataset

        del groups
        labels = class_labels(targets, self)
        order = torch.randperm(len(labels), generator=generator(seed, "flower"))
        made = self._made(num_clients, derive_seed(seed, "flower"))
        made.dataset = Dataset.from_dict({"label": labels[order].numpy(), "place": order.numpy()})
        if made.num_partitions != num_clients:
            raise ValueError(f"{self!r} makes {made.num_partitions} partitions, but `num_clients={num_clients}`.")
        owners = torch.full_like(labels, -1)
        for client in range(num_clients):
            owners[torch.as_tensor(made.load_partition(client)["place"][:])] = client
        return owners

    def _made(self, num_clients: int, seed: int) -> Any:
        ours = {"num_partitions": num_clients, "partition_by": "label", "seed": seed}
        known = inspect.signature(self.kind).parameters
        try:
            return self.kind(**{name: value for name, value in ours.items() if name in known}, **self.options)
        except TypeError as error:
            raise ValueError(f"`options` of {self!r} do not fit: {error}.") from error
