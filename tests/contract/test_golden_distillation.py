"""MOON and FedNTD on a 4-6-3 network against an independent float64 reference, golden/objectives.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from worlds import GOLDEN_FILES, Bystander, train

from lfl.aggregation import MeanAggregator
from lfl.callbacks import MOON, FederatedCallback, FedNTD
from lfl.data import DatasetSource, FederatedDataModule
from lfl.engine import LocalPhase
from lfl.participation import FixedParticipation
from lfl.round import Round

GOLDEN = json.loads((GOLDEN_FILES / "objectives.json").read_text())["M"]
PROBLEM, ENTRIES = GOLDEN["problem"], GOLDEN["entries"]
N, SIZES = PROBLEM["N"], PROBLEM["n"]
ROUNDS = 6


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Network(LightningModule):
    """``W2 tanh(W1 x + b1) + b2`` with cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)
        nn.utils.vector_to_parameters(torch.tensor(PROBLEM["x0"]), self.parameters())

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.features(batch[0])), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class UnequalWork(LocalPhase):
    """The reference's local steps, by the clients' numbers of examples, all of which are in every batch."""

    steps_of: dict[int, int]

    def num_steps(self, sizes: Tensor, batch_size: int, keys: Tensor | None = None) -> Tensor:
        return torch.tensor([self.steps_of.get(int(size), 1) for size in sizes])


class Exact(Bystander):
    """Starts from the reference's x, which float32 parameters do not hold, and keeps what there is after each round."""

    def __init__(self) -> None:
        self.path: list[Tensor] = []
        self.previous: list[dict[int, Tensor]] = []

    def on_run_start(self, federation: Any) -> None:
        super().on_run_start(federation)
        federation.server.vector.copy_(tensor(PROBLEM["x0"]))

    def on_round_end(self, round: Round) -> None:
        self.path.append(self.run.server.vector.clone())
        if "moon/previous" in self.run.store.slots:
            seen = self.run.store.has_rows("moon/previous", torch.arange(N)).nonzero().flatten()
            rows = self.run.store.gather("moon/previous", seen)
            self.previous.append(dict(zip(seen.tolist(), rows, strict=True)))


def federation(folder: Path) -> FederatedDataModule:
    inputs, targets = (torch.cat([tensor(part) for part in PROBLEM[key]]) for key in ("X", "Y"))
    everything = TensorDataset(inputs, targets.long())
    starts = torch.tensor([0, *SIZES]).cumsum(0).tolist()
    clients = {i: list(range(starts[i], starts[i + 1])) for i in range(N)}
    (folder / "partition.json").write_text(json.dumps(clients))
    source = DatasetSource(everything, everything, num_classes=3)
    return FederatedDataModule(source, num_clients=N, batch_size=9, partition_path=str(folder / "partition.json"))


def run(entry: dict[str, Any], stack: list[FederatedCallback], engine: str, folder: Path) -> Exact:
    work, exact = UnequalWork(), Exact()
    work.steps_of = dict(zip(SIZES, entry["K"], strict=True))
    train(
        [*stack, exact],
        folder,
        Network(),
        federation(folder),
        engine=engine,
        max_rounds=ROUNDS,
        local_phases=[work],
        participation=FixedParticipation(GOLDEN["schedule"][entry["schedule"]]),
        aggregator=MeanAggregator("examples"),
        logger=False,
    )
    return exact


def close(actual: Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual, tensor(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_moon_follows_the_reference(engine: str, tmp_path: Path) -> None:
    entry = ENTRIES["moon/mu1_ragged_partial"]
    found = run(entry, [MOON("features", entry["hp"]["mu"], entry["hp"]["tau"])], engine, tmp_path)
    for x, previous, expected in zip(found.path, found.previous, entry["rounds"], strict=True):
        close(x, expected["x"])
        for client, model in enumerate(expected["clients"]["prev_model"]):
            assert (model is not None) == (client in previous)
            if model is not None:
                close(previous[client], model)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_fedntd_follows_the_reference(engine: str, tmp_path: Path) -> None:
    entry = ENTRIES["fedntd/beta2_ragged_partial"]
    found = run(entry, [FedNTD(entry["hp"]["beta"], entry["hp"]["tau"], logits="head")], engine, tmp_path)
    for x, expected in zip(found.path, entry["rounds"], strict=True):
        close(x, expected["x"])
