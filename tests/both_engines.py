"""Training of a backbone by both engines, for tests of models."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from worlds import train

from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.models import Classifier
from lfl.participation import FullParticipation


def trained_by_both(build: Callable[[], nn.Module], inputs: Tensor, num_classes: int, folder: Path) -> list[Tensor]:
    """The parameters before training, and after a round of two steps of 2 clients by each engine, all in float64."""
    targets = torch.arange(len(inputs)) % num_classes
    found = []
    for engine in ("none", "sequential", "vectorized"):
        torch.manual_seed(0)
        module = Classifier(build().double(), lr=0.5)
        if engine != "none":
            source = DatasetSource(*[TensorDataset(inputs, targets)] * 2, num_classes=num_classes)
            data = FederatedDataModule(source, IIDPartitioner(), num_clients=2, batch_size=len(inputs) // 4)
            options = {"participation": FullParticipation(), "max_rounds": 1, "logger": False}
            train([], folder, module, data, engine=engine, **options)
        found.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    return found


def words(count: int = 16, length: int = 7, size: int = 20) -> Tensor:
    """Texts of random words, the indices 1 to size - 1, filled up with 0; the first has none, the second is full."""
    draws = torch.Generator().manual_seed(0)
    texts = torch.randint(1, size, (count, length), generator=draws, dtype=torch.int32)
    lengths = torch.randint(1, length, (count,), generator=draws)
    lengths[:2] = torch.tensor([0, length])
    return texts * (torch.arange(length) < lengths[:, None])
