"""The workloads of the benchmarks: data, network and local work, the same for every contender.

    python -m tools.benchmarks.workloads many-small work.pt --rounds 20

The command writes a workload as a file of tensors, for simulators that know nothing of `lfl`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lfl.data import (
    MNIST5000,
    Digits,
    DirichletPartitioner,
    FederatedDataModule,
    IIDPartitioner,
    IndexSets,
    Partition,
    Partitioner,
    Source,
    TensorData,
)
from lfl.models import MLP, Classifier, McMahanCNN, ResNet
from lfl.participation import UniformParticipation
from lfl.randomness import generator

LR, BATCH_SIZE, SEED = 0.05, 10, 0


class SmallClients(Partitioner):
    """Deals random examples in small numbers: 1 to 12 a client where there are four examples for each client."""

    @override
    def assign(self, targets: Tensor, groups: Tensor | None, num_clients: int, seed: int) -> Tensor:
        del groups
        shares = (torch.arange(num_clients) % 12).double() ** 3
        dealt = torch.arange(num_clients, len(targets)).double() - num_clients + 0.5
        rest = torch.searchsorted(shares.cumsum(0) / shares.sum() * (len(targets) - num_clients), dealt)
        order = torch.randperm(len(targets), generator=generator(seed, "small clients"))
        return torch.cat([torch.arange(num_clients), rest])[order]


class RandomImages(Source):
    """Images of noise in CIFAR's shape, with 100 test examples.

    Args:
        length: number of training examples.
    """

    num_classes = 10

    def __init__(self, length: int) -> None:
        self.length = length

    @override
    def load(self) -> tuple[TensorData, TensorData]:
        draws = generator(SEED, "images")
        sets = [
            TensorData(torch.randn(count, 3, 32, 32, generator=draws), torch.randint(10, (count,), generator=draws))
            for count in (self.length, 100)
        ]
        return sets[0], sets[1]


def small_cnn() -> nn.Module:
    """A network of four convolutions and two linear layers, 2.2 million parameters."""

    def block(width_in: int, width: int) -> list[nn.Module]:
        return [
            nn.Conv2d(width_in, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        ]  # fmt: skip

    return nn.Sequential(
        *block(3, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 64, 512), nn.ReLU(), nn.Linear(512, 10)
    )


@dataclass(frozen=True)
class Workload:
    """A federated task: the data and its owners, the network, and the local work of a round.

    Attributes:
        network: builds the network.
        source: builds the data set.
        partitioner: deals it to clients.
        clients: N.
        per_round: clients in a round.
        epochs: local epochs.
        rounds: timed ones, for a run of some seconds on a CPU.
    """

    network: Callable[[], nn.Module]
    source: Callable[[], MNIST5000 | RandomImages]
    partitioner: Callable[[], Partitioner]
    clients: int
    per_round: int
    epochs: int
    rounds: int

    def data(self) -> FederatedDataModule:
        """The clients' data, set up."""
        data = FederatedDataModule(self.source(), self.partitioner(), self.clients, BATCH_SIZE, seed=SEED)
        data.setup("fit")
        return data

    def tensors(self) -> tuple[TensorData, TensorData]:
        """The training and the test set."""
        return self.source().load()

    def model(self) -> Classifier:
        """The network at its initial weights, with SGD."""
        torch.manual_seed(SEED)
        return Classifier(self.network(), lr=LR)

    def participation(self) -> UniformParticipation:
        """The rule that draws participants."""
        return UniformParticipation(self.per_round)

    def participants(self, rounds: int) -> Tensor:
        """Ids of those who take part in each round [rounds, M]."""
        chosen = self.participation()
        return torch.stack([chosen.select(number + 1, self.clients, SEED) for number in range(rounds)])


WORKLOADS = {
    "cnn": Workload(McMahanCNN, MNIST5000, lambda: DirichletPartitioner(0.3), 100, 10, 1, rounds=24),
    "mlp": Workload(lambda: MLP(784, [200], 10), MNIST5000, lambda: DirichletPartitioner(0.3), 100, 10, 5, rounds=50),
    "many-small": Workload(lambda: MLP(784, [], 10), MNIST5000, SmallClients, 1000, 100, 1, rounds=100),
    "resnet": Workload(
        lambda: ResNet(depth=18, norm="group"), lambda: RandomImages(160), IIDPartitioner, 8, 4, 1, rounds=5
    ),
    "pfl-cifar": Workload(small_cnn, lambda: RandomImages(5000), IIDPartitioner, 100, 50, 1, rounds=4),
}


def write(name: str, rounds: int, path: Path) -> None:
    """Write all that another simulator needs as a file of tensors: see the keys below."""
    workload = WORKLOADS[name]
    data, model = workload.data(), workload.model()
    train, test = workload.tensors()
    contents: dict[str, Any] = {
        "name": name,
        "train_inputs": train.inputs, "train_targets": train.targets,
        "test_inputs": test.inputs, "test_targets": test.targets,
        "clients": [data.partition.client(i).clone() for i in range(workload.clients)],
        "participants": workload.participants(rounds),
        "batch_size": BATCH_SIZE, "lr": LR, "epochs": workload.epochs,
        "state": [p.detach().clone() for p in model.parameters()],
    }  # fmt: skip
    torch.save(contents, path)


def shared_digits(num_clients: int, batch_size: int, each: int = 10) -> FederatedDataModule:
    """Digits for any number of clients, so that a million of them are index arrays.

    Client i has ``each`` examples in a row, from where those of the client before it end.
    """
    data = FederatedDataModule(Digits(), IIDPartitioner(), num_clients=1, batch_size=batch_size)
    data.setup("fit")
    positions = torch.arange(num_clients * each) % int(data.client_sizes[0])
    train = IndexSets(positions, torch.arange(num_clients + 1) * each)
    nobody = IndexSets(torch.empty(0, dtype=torch.int64), torch.zeros(num_clients + 1, dtype=torch.int64))
    data.num_clients, data.partition = num_clients, Partition(train, nobody)
    return data


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    write(options.workload, options.rounds, options.path)


if __name__ == "__main__":
    main()
