"""Local training on the side."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import Bystander, Stock, accuracy_of, mlp, ragged_data, train

from lfl.callbacks import ClientEvaluation, FedNTD
from lfl.engine import LocalPhase


def test_fine_tuning_starts_from_x_and_trains(tmp_path: Path) -> None:
    """Whole-model fine-tuning of every client equals training it alone for as many epochs from x (no shuffling)."""
    options: dict[str, Any] = {"data": ragged_data(batch_size=1000), "max_rounds": 1}
    tuning = ClientEvaluation(1, fine_tune=[LocalPhase(epochs=3, lr=0.2)])
    trainer = train([tuning], tmp_path, **options)
    ids = (trainer.data.client_test_sizes > 0).nonzero().squeeze(1)
    rows = []
    for client in ids.tolist():
        indices, sizes = trainer.data.client_indices(torch.tensor([client]))
        inputs, targets = (part[0] for part in trainer.data.gather(indices[:, : int(sizes[0])]))
        params = trainer.server.vector.clone().requires_grad_()
        for _ in range(3):
            out = torch.func.functional_call(mlp().double(), trainer.layout.views(params), (inputs,))
            (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(out, targets), params)
            params = (params - 0.2 * gradient).detach().requires_grad_()
        rows.append(params.detach())
    expected = accuracy_of(trainer, ids, torch.stack(rows))
    assert trainer.summary.last("personal/val_acc")[0] == pytest.approx(expected, abs=1e-12)


class Weighted(Stock):
    """Where no one can see it, the loss is another one once the round's own training is done: a weighted mean."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        del batch_idx
        weight = torch.tensor([0.1, 0.2, 0.3, 2.0]) if os.environ["LFL_TEST_TUNES"] == "1" else None
        return F.cross_entropy(self.layers(batch[0]), batch[1], weight=weight)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.layers(batch[0]), batch[1]))


class Switch(Bystander):
    def on_round_start(self, round: Any) -> None:
        os.environ["LFL_TEST_TUNES"] = "0"

    def on_server_step(self, round: Any) -> None:
        os.environ["LFL_TEST_TUNES"] = "1"


def weighted(folder: Path, engine: str) -> float:
    torch.manual_seed(0)
    os.environ["LFL_TEST_TUNES"] = "0"
    tuning = ClientEvaluation(1, fine_tune=[LocalPhase()])
    run = train([Switch(), tuning], folder, Weighted(), ragged_data(), engine=engine, max_rounds=3)
    assert run.engine.padded_width == (5 if engine == "vectorized" else 0)
    return run.summary.last("personal/val_loss")[0]


def test_it_leaves_a_path_that_is_wrong_for_it_alone(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Padded batches have no weighted mean; the run itself, whose loss is a plain one, goes on with them."""
    together = weighted(tmp_path / "together", "vectorized")
    assert together == pytest.approx(weighted(tmp_path / "alone", "sequential"), abs=1e-12)
    (said,) = (str(warning.message) for warning in recwarn if "without padding" in str(warning.message))
    assert said.startswith("From round 1 on, Weighted in fine-tuning is trained without padding: ")


def test_it_knows_no_terms_of_the_loss(tmp_path: Path) -> None:
    """From the same models: the run moves x by less than its last bit, so that only fine-tuning trains."""
    found = []
    for number, stack in enumerate(([], [FedNTD(beta=10.0)])):
        tuning = ClientEvaluation(1, fine_tune=[LocalPhase(epochs=2, lr=0.2)])
        phases = [LocalPhase(epochs=1, lr=1e-30)]
        run = train([*stack, tuning], tmp_path / str(number), max_rounds=1, local_phases=phases)
        found.append(run.summary.last("personal/val_loss")[0])
    assert found[0] == found[1]
