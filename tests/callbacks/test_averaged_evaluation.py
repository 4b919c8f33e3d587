"""The mean of the last iterates is evaluated, and x is trained on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from two_clients import two_clients
from worlds import Quadratic, mlp, train, train_quadratic

from lfl.callbacks import AveragedEvaluation
from lfl.checkpointing import Checkpointing


class Shown(Quadratic):
    """Logs where it is evaluated."""

    def __init__(self) -> None:
        super().__init__(dim=2, lr=0.5)
        self.seen: list[list[float]] = []

    def validation_step(self, batch: Any) -> None:
        self.seen.append(self.point.tolist())
        self.log("val_loss", self.point.sum())


def evaluated(last: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[float]], Tensor]:
    module, data = Shown(), two_clients()
    monkeypatch.setattr(data, "val_dataloader", lambda: [[data.gather_test(torch.arange(2))]])
    trainer, _ = train_quadratic(
        [AveragedEvaluation(last)], folder, module=module, data=data, max_rounds=3, local_steps=1,
        check_val_every_n_rounds=1,
    )  # fmt: skip
    return module.seen, trainer.server.vector


def test_means_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta = ((4 - x_1) / 4, -x_2 / 4 + (2 - x_2) / 2): x is (0, 0), (1, 1), (1.75, 1.25), (2.3125, 1.3125)."""
    path = [[0.0, 0.0], [1.0, 1.0], [1.75, 1.25], [2.3125, 1.3125]]
    for last in (1, 2, 3):
        seen, x = evaluated(last, tmp_path, monkeypatch)
        windows = [path[max(0, t + 1 - last) : t + 1] for t in (1, 2, 3)]
        means = [torch.tensor(rows).double().mean(dim=0) for rows in windows]
        torch.testing.assert_close(torch.tensor(seen).double(), torch.stack(means), rtol=1e-6, atol=0)
        assert x.tolist() == path[-1]


def test_it_only_looks_and_resumes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "check_val_every_n_rounds": 1,
        "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True),
        "max_rounds": 4,
    }
    plain = train([], tmp_path / "plain", mlp(), **options)
    unbroken = train([AveragedEvaluation()], tmp_path / "unbroken", mlp(), **options)
    assert torch.equal(plain.server.vector, unbroken.server.vector)
    assert plain.callback_metrics["val_loss"] != unbroken.callback_metrics["val_loss"]
    saved = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    resumed = train([AveragedEvaluation()], tmp_path / "resumed", mlp(), ckpt_path=str(saved), **options)
    assert resumed.callback_metrics["val_loss"] == unbroken.callback_metrics["val_loss"]
    # By itself, `validate` evaluates x.
    loss = unbroken.validate()["val_loss"]
    assert loss == pytest.approx(float(plain.callback_metrics["val_loss"]))
    with pytest.raises(ValueError, match=r"`last=0` of AveragedEvaluation must be a whole number of at least 1."):
        AveragedEvaluation(0)
