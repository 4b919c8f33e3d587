"""Ragged batches are padded where that cannot change a loss, and only there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import cnn, mlp, ragged_data, train

from lfl.callbacks import HyperbolicRegularization, Proximal
from lfl.models import Classifier


def is_padded(module: Classifier, folder: Path, callbacks: list[Any] | None = None, **options: Any) -> bool:
    data = options.pop("data", None) or ragged_data()
    trainer = train(callbacks or [], folder, module, data, engine="vectorized", max_rounds=1, **options)
    return bool(trainer.engine.padded_width)


@pytest.mark.parametrize("callbacks", [[], [Proximal(0.1)]])
def test_means_over_examples_are_padded(callbacks: list[Any], tmp_path: Path) -> None:
    assert is_padded(mlp(), tmp_path, callbacks)
    assert is_padded(cnn(), tmp_path, callbacks)


def test_random_operations_and_global_features_are_not(tmp_path: Path) -> None:
    """Both are drawn, or computed, for a batch as a whole."""
    assert not is_padded(mlp(dropout=0.2), tmp_path)
    assert not is_padded(mlp(), tmp_path, [HyperbolicRegularization("backbone.features")])


def test_a_loss_that_compares_examples_is_not(tmp_path: Path) -> None:
    class Contrastive(Classifier):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            z = self(batch[0])
            return super().training_step(batch, batch_idx) + 0.01 * (z @ z.T).square().mean()

    assert not is_padded(Contrastive(mlp().backbone), tmp_path)


def test_what_is_logged_must_be_a_mean_too(tmp_path: Path) -> None:
    class Summing(Classifier):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            self.log("brightness", batch[0].sum())
            return super().training_step(batch, batch_idx)

    assert not is_padded(Summing(mlp().backbone), tmp_path)


@pytest.mark.parametrize("trace_steps", [False, True])
@pytest.mark.parametrize("callbacks", [[], [Proximal(0.5)]])
def test_padding_changes_nothing(trace_steps: bool, callbacks: list[Any], tmp_path: Path) -> None:
    """Against one client at a time, in float64: also where one client has a tenth of the others' examples."""
    data = ragged_data(num_clients=6)
    runs = [
        train(callbacks, tmp_path, mlp(), data, engine=engine, trace_steps=trace_steps, local_epochs=3)
        for engine in ("sequential", "vectorized")
    ]
    assert runs[1].engine.padded_width
    torch.testing.assert_close(runs[1].server.vector, runs[0].server.vector, rtol=0, atol=1e-10)
    for name in ("train/loss", "train_acc"):
        assert runs[1].summary.last(name)[0] == pytest.approx(runs[0].summary.last(name)[0], abs=1e-10)
