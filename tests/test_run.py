"""A run's state is its checkpoint."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from kill import differing
from worlds import mlp, train

from lfl.callbacks import Diagnostics, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.run import Progress
from lfl.storage.checkpoint_file import load_checkpoint
from lfl.trainer import FederatedTrainer

OPTIONS: dict[str, Any] = {
    "precision": "32-true",
    "max_rounds": 5,
    "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True),
    "check_val_every_n_rounds": 3,
    "server_optimizer": lambda params: torch.optim.SGD(params, lr=0.7, momentum=0.5),
    "cohort_size": 3,
}
# Fields of a run with a `state_dict` of their own that outlive no round, and why.
NO_STATE = {
    "data": "what the clients have is a setting; a data module's state is for Lightning's trainer",
}


def fitted(folder: Path, rounds: int, **options: Any) -> FederatedTrainer:
    return train([Scaffold(), Diagnostics(trajectory=3)], folder, mlp(), **{**OPTIONS, "max_rounds": rounds, **options})


def test_client_state_may_move(tmp_path: Path) -> None:
    first = train([Scaffold()], tmp_path, mlp(), **{**OPTIONS, "client_state": "memmap", "max_rounds": 3})
    second = train([Scaffold()], tmp_path, mlp(), ckpt_path="last", **{**OPTIONS, "client_state": "host"})
    straight = train([Scaffold()], tmp_path / "straight", mlp(), **OPTIONS)
    assert first.current_round == 3
    assert torch.equal(second.server.vector, straight.server.vector)


def test_the_state_of_a_run_makes_another_one_equal(tmp_path: Path) -> None:
    run, other = fitted(tmp_path, 3).run, fitted(tmp_path, 0).run
    state = run.state_dict("a")
    assert differing(state, other.state_dict("a"))
    other.load_state_dict(state, run.folder)
    assert differing(state, other.state_dict("b")) == []
    assert other.progress.round == 3
    assert other.checkpointing.saved_round == 3


def test_everything_with_a_state_is_stateful(tmp_path: Path) -> None:
    run = fitted(tmp_path, 1).run
    values = {field.name: getattr(run, field.name) for field in fields(run) if field.name not in NO_STATE}
    kept = {name for name, value in values.items() if hasattr(value, "state_dict")}
    assert kept == {"progress", "server", "module_state", "ledger", "rates", "summary", "checkpointing"}
    assert all(any(values[name] is part for part in run.stateful.values()) for name in kept)
    assert set(run.stateful) == kept - {"rates"} | {"learning_rates", "callbacks", "observers", "loggers"}
    assert set(run.stateful) < set(run.state_dict())


def test_progress_round_trip() -> None:
    progress, other = Progress(3, 2, {"time": 1.5}), Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress


def test_a_saved_checkpoint_lets_go_of_the_rows_of_the_one_before(tmp_path: Path) -> None:
    run = fitted(tmp_path, 1, client_state="memmap", checkpoint=None).run
    run.save("mine.ckpt")
    run.progress.round = 2
    run.save("mine.ckpt")
    assert load_checkpoint(run.folder / "checkpoints" / "mine.ckpt")["round"] == 2
    with pytest.raises(ValueError, match=r"no snapshot 'mine.ckpt@1' .* live ones: \['mine.ckpt@2'\]"):
        run.store.release("mine.ckpt@1")


def test_when_the_server_is_evaluated(tmp_path: Path) -> None:
    run = fitted(tmp_path, 5).run
    assert [number for number in range(1, 6) if run.is_evaluation_due(number)] == [3, 5]
    run.val_dataloaders = None
    assert not run.is_evaluation_due(3)
