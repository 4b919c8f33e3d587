"""Small worlds to train in, for tests of any module."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.aggregation import MeanAggregator
from lfl.callbacks import FederatedCallback
from lfl.data import (
    ClassesPerClientPartitioner,
    DatasetSource,
    DirichletPartitioner,
    FederatedData,
    FederatedDataModule,
    IIDPartitioner,
)
from lfl.data.partition import IndexSets, Partition
from lfl.federation import Federation
from lfl.models import MLP, Classifier
from lfl.participation import FixedParticipation, FullParticipation, UniformParticipation
from lfl.round import Round
from lfl.run import Run
from lfl.trainer import FederatedTrainer

GOLDEN_FILES = Path(__file__).parent / "golden"


def images(count: int = 120, side: int = 8, num_classes: int = 4, seed: int = 0) -> torch.utils.data.TensorDataset:
    """Noisy images that can be learnt."""
    prototypes = torch.randn(num_classes, 1, side, side, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(seed + 1)
    targets = torch.randint(num_classes, (count,), generator=draws)
    inputs = prototypes[targets] + 0.5 * torch.randn(count, 1, side, side, generator=draws)
    return torch.utils.data.TensorDataset(inputs, targets)


def ragged_data(num_clients: int = 8, batch_size: int = 5, **options: Any) -> FederatedDataModule:
    """Clients of very different sizes, some with a single example, most with a last partial batch."""
    source = options.pop("source", None) or DatasetSource(images(), images(40, seed=1), num_classes=4)
    options = {"partitioner": DirichletPartitioner(alpha=0.3), **options}
    return FederatedDataModule(source=source, num_clients=num_clients, batch_size=batch_size, **options)


def mlp(dropout: float = 0.0, hidden: int = 12, seed: int = 0, **options: Any) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(MLP(in_features=64, hidden=[hidden], num_classes=4, dropout=dropout), lr=0.1, **options)


def equal_data(**options: Any) -> FederatedDataModule:
    """15 examples a client in batches of 5: one shape of batches (recording takes about a second a shape)."""
    return ragged_data(partitioner=IIDPartitioner(), **options)


class SmallCNN(nn.Module):
    """A convolution with GroupNorm."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1), nn.Dropout(dropout)
        )
        self.head = nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


def cnn(dropout: float = 0.0, seed: int = 0, **options: Any) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(SmallCNN(dropout), lr=0.1, **options)


class BatchNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.flatten(1)))


def batch_norm() -> Classifier:
    torch.manual_seed(0)
    return Classifier(BatchNormNet(), lr=0.1)


def even_data(batch_size: int = 20) -> FederatedDataModule:
    """Clients with several examples: BatchNorm in training cannot take one alone."""
    return ragged_data(4, partitioner=ClassesPerClientPartitioner(2), batch_size=batch_size)


ONE_ROUND = {"max_rounds": 1, "participation": FixedParticipation([[0, 2]]), "local_epochs": 1}


class Bystander(FederatedCallback):
    """A callback of a test's own, which keeps the run."""

    run: Run

    def on_run_start(self, federation: Federation) -> None:
        assert isinstance(federation, Run)
        self.run = federation


class Rounds(FederatedCallback):
    """Keeps the rounds of a run, as they were at their ends."""

    def __init__(self) -> None:
        self.kept: list[Round] = []

    def on_round_end(self, round: Round) -> None:
        self.kept.append(round)


def train(
    callbacks: list[FederatedCallback],
    folder: Path,
    module: LightningModule | None = None,
    data: FederatedData | None = None,
    ckpt_path: str | None = None,
    **options: Any,
) -> FederatedTrainer:
    """A silent fit, float64 and sequential unless told otherwise."""
    settings: dict[str, Any] = {
        "max_rounds": 3,
        "engine": "sequential",
        "precision": "64-true",
        "participation": UniformParticipation(clients_per_round=5, rounds_per_draw=2),  # FL-SSVRG's epochs
        "aggregator": MeanAggregator("uniform"),
        "checkpoint": None,
        "enable_progress_bar": False,
        "accelerator": "cpu",
        "check_val_every_n_rounds": 100,
        **options,
    }
    trainer = FederatedTrainer(callbacks=callbacks, default_root_dir=str(folder), **settings)
    trainer.fit(module if module is not None else mlp(), data if data is not None else ragged_data(), ckpt_path)
    return trainer


class Quadratic(LightningModule):
    """``F_i(y) = 1/2 (y - b_i)^T A_i (y - b_i)`` with diagonal A_i; a batch is (A_i, b_i), so gradients are exact."""

    def __init__(self, dim: int = 12, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(dim))
        self.lr, self.momentum, self.decay = lr, momentum, weight_decay

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        curvature, centre = batch
        return 0.5 * (curvature * (self.point - centre) ** 2).sum(dim=-1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.decay)


class QuadraticData(FederatedData):
    """One example a client: its A_i (diagonal U[.3, 1.5]) and b_i (N(0, 1))."""

    def __init__(self, num_clients: int = 5, dim: int = 12, seed: int = 0) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(seed)
        self.curvature = 0.3 + 1.2 * torch.rand(num_clients, dim, generator=draws, dtype=torch.float64)
        self.centre = torch.randn(num_clients, dim, generator=draws, dtype=torch.float64)
        self.num_clients, self.batch_size, self.num_classes = num_clients, 1, 0
        sets = IndexSets(torch.arange(num_clients), torch.arange(num_clients + 1))
        self.partition = Partition(sets, sets)
        self.has_random_transforms = False  # type: ignore[misc]

    has_random_transforms = False  # type: ignore[assignment]

    @property
    def optimum(self) -> Tensor:
        return (self.curvature * self.centre).sum(0) / self.curvature.sum(0)

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        self.curvature, self.centre = self.curvature.to(dtype), self.centre.to(dtype)

    def gather(self, indices: Tensor, keys: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.curvature[indices], self.centre[indices]

    gather_test = gather

    def batches(self, plan: Any) -> Iterator[tuple[Tensor, ...]]:
        return (self.gather(indices) for indices, _ in plan)


def train_quadratic(
    callbacks: list[FederatedCallback], folder: Path, **options: Any
) -> tuple[FederatedTrainer, QuadraticData]:
    data = options.pop("data", None) or QuadraticData()
    module = options.pop("module", None) or Quadratic()
    settings = {"participation": FullParticipation(), "local_steps": 6, "logger": False, **options}
    return train(callbacks, folder, module, data, **settings), data


class Stock(LightningModule):
    """As in Lightning's documentation; knows nothing of lfl."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))
        self.hooks: list[str] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        x, y = batch
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log("train_loss", loss, prog_bar=True, on_step=False, on_epoch=True)
        self.log_dict({"train_acc": (logits.argmax(1) == y).float().mean(), "constant": 2.0}, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("val_acc", (self.layers(x).argmax(1) == y).float().mean())

    def on_train_epoch_start(self) -> None:
        self.hooks.append(f"epoch {self.current_epoch}")

    def on_validation_epoch_end(self) -> None:
        self.hooks.append("validated")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def stock() -> Stock:
    torch.manual_seed(0)
    return Stock()


class Strange(LightningModule):
    """A tied weight, a frozen layer, an integer table, a 0-d counter that counts steps, and a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, 64, bias=False)
        self.decoder = nn.Linear(64, 64)
        self.decoder.weight = self.encoder.weight
        self.frozen = nn.Linear(64, 4).requires_grad_(False)
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.tensor(1 / 3, dtype=torch.float32))
        self.register_buffer("flag", torch.tensor(False))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        self.steps += 1
        hidden = self.decoder(self.encoder(x.flatten(1)).tanh())
        return nn.functional.cross_entropy(self.frozen(hidden) * self.scale, y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1)


def accuracy_of(trainer: FederatedTrainer, ids: Tensor, params: Tensor) -> float:
    """Mean over all test examples of the clients, by a direct forward."""
    module, correct, count = mlp().double(), 0, 0
    indices, sizes = trainer.data.client_test_indices(ids)
    for row, positions, size in zip(params, indices, sizes.tolist(), strict=True):
        inputs, targets = (part[0] for part in trainer.data.gather_test(positions[None, :size]))
        out = torch.func.functional_call(module, trainer.layout.views(row), (inputs,))
        correct, count = correct + int((out.argmax(dim=1) == targets).sum()), count + size
    return correct / count


HEAD = ["*.head.*"]


def head_of(trainer: FederatedTrainer) -> Tensor:
    return trainer.layout.select(HEAD)


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now
