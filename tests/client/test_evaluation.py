"""Evaluation by the module's own steps."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import Stock, images, mlp, train

from lfl.client.evaluation import Evaluator
from lfl.client.model import ClientModel
from lfl.data import DatasetSource, FederatedDataModule
from lfl.data.stores import Loader
from lfl.participation import FullParticipation
from lfl.processes.group import Processes


def test_validation_over_several_dataloaders_and_by_batches(tmp_path: Path) -> None:
    class Two(FederatedDataModule):
        def val_dataloader(self) -> Any:
            loader = super().val_dataloader()
            return [loader, loader]

    class TwoLoaders(Stock):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val_index", float(dataloader_idx))
            self.log("val_size", float(len(batch[1])))

    source = DatasetSource(images(), images(40, seed=1), num_classes=4)
    data = Two(source=source, num_clients=4, eval_batch_size=30)
    run = train([], tmp_path, TwoLoaders(), data, max_rounds=1, participation=FullParticipation())
    assert run.summary.last("val_index/dataloader_idx_0")[0] == 0
    assert run.summary.last("val_index/dataloader_idx_1")[0] == 1
    # Batches of 30 and 10 examples, averaged over examples.
    assert run.summary.last("val_size/dataloader_idx_0")[0] == (30 * 30 + 10 * 10) / 40


def test_frozen_parts_stay_in_evaluation_mode(tmp_path: Path) -> None:
    """As under lightning.Trainer: evaluation gives every part its own mode back."""
    module = mlp(dropout=0.5)
    dropout = next(part for part in module.modules() if isinstance(part, nn.Dropout))
    dropout.eval()
    train([], tmp_path, module, max_rounds=2, check_val_every_n_rounds=1, engine="vectorized")
    assert not dropout.training
    assert module.training


class Sizes(LightningModule):
    """Logs the size of each batch: once as it is, once as if it had one example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("size", float(len(batch)))
        self.log("alone", float(len(batch)), batch_size=1)
        self.log("number", float(batch_idx), batch_size=1)

    def predict_step(self, batch: Tensor) -> Tensor:
        return 2 * batch


def test_means_are_over_examples_unless_the_step_says_otherwise() -> None:
    module = Sizes()
    evaluator = Evaluator(ClientModel(module), Processes(Fabric(accelerator="cpu", devices=1)))
    assert [evaluator.can(stage) for stage in ("validate", "test", "predict")] == [True, False, True]
    batches = [torch.zeros(3, 1), torch.ones(1, 1)]
    expected = {"size": (3 * 3 + 1) / 4, "alone": 2.0, "number": 0.5}
    assert evaluator.run("validate", Loader(lambda: iter(batches), 2)) == (expected, [])  # a list is several loaders
    assert evaluator.run_alone("validate", batches) == expected
    outputs = evaluator.run("predict", Loader(lambda: iter(batches), 2))[1]
    assert [part.tolist() for part in outputs] == [[[0.0]] * 3, [[2.0]]]
    assert module.training
