"""Local training on the side."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from worlds import accuracy_of, mlp, ragged_data, train

from lfl.callbacks import ClientEvaluation
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
