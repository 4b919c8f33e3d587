"""At which rounds checkpoints are written."""

from pathlib import Path
from typing import Any

import torch
from worlds import mlp, train

from lfl.checkpointing import Checkpointing


def sgd_with_momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.7, momentum=0.5)


OPTIONS: dict[str, Any] = {
    "precision": "32-true",
    "max_rounds": 5,
    "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True),
    "check_val_every_n_rounds": 3,
    "server_optimizer": sgd_with_momentum,
    "cohort_size": 3,
}


def test_best_checkpoint_is_the_best_round(tmp_path: Path) -> None:
    options = {**OPTIONS, "check_val_every_n_rounds": 1, "max_rounds": 6}
    options["checkpoint"] = Checkpointing(every_n_rounds=100, monitor="val_acc")
    trainer = train([], tmp_path, mlp(), **options)
    best, round_number = trainer.summary.best("val_acc")
    saved = torch.load(Path(trainer.log_dir) / "checkpoints" / "best.ckpt", weights_only=True)
    assert (saved["round"], saved["checkpointing"]["best"]) == (round_number, best)
