"""A run's state is its checkpoint."""

from pathlib import Path
from typing import Any

import torch
from worlds import mlp, train

from lfl.callbacks import Scaffold
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


def test_client_state_may_move(tmp_path: Path) -> None:
    first = train([Scaffold()], tmp_path, mlp(), **{**OPTIONS, "client_state": "memmap", "max_rounds": 3})
    second = train([Scaffold()], tmp_path, mlp(), ckpt_path="last", **{**OPTIONS, "client_state": "host"})
    straight = train([Scaffold()], tmp_path / "straight", mlp(), **OPTIONS)
    assert first.current_round == 3
    assert torch.equal(second.server.vector, straight.server.vector)
