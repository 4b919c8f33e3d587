"""Evaluation by the module's own steps."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import images, mlp, train

from lfl.data import DatasetSource, FederatedDataModule
from lfl.participation import FullParticipation


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
