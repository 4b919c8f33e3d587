"""One round of FedRep that can be followed by hand: numbers instead of networks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import train

from lfl.callbacks import ClientEvaluation, PersonalParameters
from lfl.data import FederatedData
from lfl.data.partition import IndexSets, Partition
from lfl.data.stores import Loader
from lfl.engine import LocalPhase
from lfl.participation import FullParticipation, HeldOutParticipation
from lfl.trainer import FederatedTrainer

CENTRES = [4.0, 8.0, -8.0, 4.0, 3.0]  # b_i, the one training example of each client
TARGETS = [[1.0], [4.0, 6.0], [-3.5], [], [1.0, 2.0]]  # test examples: client 3 has none, client 4 is held out
ONE_STEP = [LocalPhase(["head"], steps=1, lr=0.5)]

# After the head's step h_i = b_i / 2, after the other s_i = b_i / 4, of which x has the mean over clients 0 to 3: 1/2.
ERRORS = {
    "server": {0: 0.5, 1: 4.5, 2: 4.0},  # 1/2 for all
    "personal": {0: 1.5, 1: 1.0, 2: 0.0},  # 1/2 + b_i / 2 = 2.5, 4.5, -3.5
    "fine_tuned": {0: 2.25, 1: 1.25, 2: 2.25},  # half the way from there to b_i: 3.25, 6.25, -5.75
    "new": {4: 0.5},  # half the way from 1/2 to 3: 1.75
}
ALL_TUNED = {0: 3.0, 1: 3.0, 2: 4.5}  # with both parameters: all the way, to b_i
SIZES = {0: 1, 1: 2, 2: 1, 4: 2}
# Mean over examples, mean over clients, their deviation, and the worst tenth: the largest of three.
NUMBERS = {
    "server": (13.5 / 4, 3.0, (9.5 / 3) ** 0.5, 4.5),
    "personal": (0.875, 2.5 / 3, 14**0.5 / 6, 1.5),
    "fine_tuned": (1.75, 5.75 / 3, 2**0.5 / 3, 2.25),
    "new": (0.5, 0.5, 0.0, 0.5),
}


class Sum(LightningModule):
    """Predicts ``shared + head``."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Tensor) -> Tensor:
        return 0.5 * (self.shared + self.head - batch).square().mean()

    def validation_step(self, batch: Tensor) -> None:
        self.log("val_loss", (self.shared + self.head - batch).abs().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class ToyData(FederatedData):
    """``CENTRES`` to train on, ``TARGETS`` to be tested on."""

    has_random_transforms = False  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.train, self.test = torch.tensor(CENTRES), torch.tensor([y for own in TARGETS for y in own])
        self.num_clients, self.batch_size, self.num_classes = len(CENTRES), 1, 0
        ends = torch.tensor([0, *(len(own) for own in TARGETS)]).cumsum(0)
        train = IndexSets(torch.arange(len(CENTRES)), torch.arange(len(CENTRES) + 1))
        self.partition = Partition(train, IndexSets(torch.arange(len(self.test)), ends))

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self.train, self.test = self.train.to(dtype), self.test.to(dtype)

    def gather(self, indices: Tensor, keys: Tensor | None = None) -> Tensor:
        return self.train[indices]

    def gather_test(self, indices: Tensor) -> Tensor:
        return self.test[indices]

    def batches(self, plan: Any) -> Iterator[Tensor]:
        return (self.gather(indices) for indices, _ in plan)

    def val_dataloader(self) -> Loader:
        return Loader(lambda: iter([self.test]), 1)


def train_toy(folder: Path, evaluation: ClientEvaluation | None = None, **options: Any) -> FederatedTrainer:
    settings: dict[str, Any] = {
        "max_rounds": 1,
        "participation": HeldOutParticipation([4], FullParticipation()),
        "local_phases": [*ONE_STEP, LocalPhase(["shared"], steps=1)],
        **options,
    }
    if evaluation is None:
        evaluation = ClientEvaluation(1, ONE_STEP, scopes=["server", "personal", "fine_tuned", "new"])
    return train([PersonalParameters(["head"]), evaluation], folder, Sum(), ToyData(), **settings)
