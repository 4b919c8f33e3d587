"""What observers log: numbers by hand, and the loss of the model that a run ends with."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from lfl.data import Digits, FederatedDataModule, IIDPartitioner
from lfl.loggers.csv import read_rows
from lfl.models import MLP, Classifier
from tools.papers.observers import (
    LOSS,
    SHARE,
    SILHOUETTE,
    ClassSilhouette,
    Observer,
    TrainingLoss,
    TrajectoryShare,
    observer,
    silhouette,
)
from tools.training import fitted


def logged(observers: list[Observer], rounds: int) -> tuple[dict[int, dict[str, float]], Classifier]:
    """Metrics by round of a run on digits, and the model that it ends with."""
    torch.manual_seed(0)
    data = FederatedDataModule(Digits(), IIDPartitioner(), num_clients=3, batch_size=50)
    model = Classifier(MLP(in_features=64, hidden=[8], num_classes=10), lr=0.1)
    with fitted(model, data, max_rounds=rounds, callbacks=observers, seed=0) as trainer:
        rows = dict(read_rows(Path(trainer.log_dir) / "metrics.csv"))
    return rows, model


def test_the_loss_is_that_of_the_servers_model_on_all_training_data() -> None:
    rows, model = logged([TrainingLoss(2)], rounds=3)
    assert [number for number, metrics in rows.items() if LOSS in metrics] == [2, 3]  # the last one in any case
    train, _ = Digits().load()
    expected = cross_entropy(model(train.inputs), train.targets)
    assert rows[3][LOSS] == pytest.approx(expected.item(), rel=1e-5)


def test_observers_change_nothing() -> None:
    alone, _ = logged([], rounds=2)
    observed, _ = logged([TrainingLoss(), TrajectoryShare(1, components=1), ClassSilhouette(every_n_rounds=1)], 2)
    own = {LOSS, SHARE, SILHOUETTE}
    assert {n: {k: v for k, v in row.items() if k not in own} for n, row in observed.items()} == alone
    assert observed[1][SHARE] == 1.0  # one move has one direction
    assert 0.5 < observed[2][SHARE] < 1.0
    assert -1.0 < observed[2][SILHOUETTE] < 1.0


def test_the_share_of_the_first_directions() -> None:
    """Moves (3, 0), (0, 4) and (0, 0) have energies 16 and 9 in two directions."""
    share = TrajectoryShare(components=1)
    server = SimpleNamespace(vector=torch.zeros(2))
    federation: Any = SimpleNamespace(server=server, layout=SimpleNamespace(layers={"all": slice(0, 2)}), max_rounds=9)
    share.on_run_start(federation)
    for move in ([3.0, 0.0], [0.0, 4.0], [0.0, 0.0]):
        before: Any = SimpleNamespace(server=server.vector, number=1)
        server.vector = server.vector + torch.tensor(move)
        share.on_server_step(before)
    assert share.observed()[SHARE] == pytest.approx(16 / 25)
    share.components = 50
    assert share.observed()[SHARE] == pytest.approx(1.0)


def test_silhouette_by_hand() -> None:
    """Classes at 0, 1 and 4, 5: a = 1, b = 4.5 and 3.5, so that s = 7/9, 5/7, 5/7, 7/9."""
    features = torch.tensor([[0.0], [1.0], [4.0], [5.0]], dtype=torch.float64)
    assert silhouette(features, torch.tensor([0, 0, 1, 1])) == pytest.approx((7 / 9 + 5 / 7) / 2)
    assert math.isnan(silhouette(features, torch.zeros(4)))  # one class alone


def test_an_observer_as_a_file_has_it() -> None:
    assert observer(TrainingLoss, every_n_rounds=5) == {
        "class_path": "tools.papers.observers.TrainingLoss",
        "init_args": {"every_n_rounds": 5},
    }
