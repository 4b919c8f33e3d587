"""Choosing an engine: what cannot be vectorized or recorded is refused with the reason."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from worlds import ONE_ROUND, batch_norm, equal_data, even_data, ragged_data, train

from lfl.models import CifarResNet, Classifier


def test_vectorized_refuses_batch_norm_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`engine=vectorized` cannot train Classifier: .*running_mean"):
        train([], tmp_path, batch_norm(), even_data(), engine="vectorized", **ONE_ROUND)


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


def test_a_counter_in_the_step_is_reason_enough_not_to_vectorize(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="changes the buffer 'steps' in place"):
        train([], tmp_path, Strange(), ragged_data(), engine="vectorized")


def test_a_module_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot record the step of Classifier: it changes the buffer 'backbone"):
        train([], tmp_path, Classifier(CifarResNet(8, in_channels=1)), equal_data(), trace_steps=True)
