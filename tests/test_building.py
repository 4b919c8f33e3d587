"""What is refused is refused before anything is made on the disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import train


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


def test_batch_hooks_that_are_not_called_are_named(tmp_path: Path) -> None:
    class Hooked(Stock):
        def on_train_batch_end(self, *args: Any) -> None:
            raise AssertionError

    with pytest.warns(UserWarning, match="overrides on_train_batch_end, which lfl does not call"):
        train([], tmp_path, Hooked(), max_rounds=1)
