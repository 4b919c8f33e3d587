"""A run's state is its checkpoint."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kill import differing
from worlds import Rounds, mlp, train

from lfl.callbacks import Diagnostics, FederatedCallback, Proximal, Scaffold
from lfl.checkpointing import Checkpointing
from lfl.models import Classifier
from lfl.round import Round
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
    parts = {"progress", "server", "module_state", "ledger", "outbox", "rates", "summary", "checkpointing", "lightning"}
    assert kept == parts
    assert all(any(values[name] is part for part in run.stateful.values()) for name in kept)
    assert set(run.stateful) == kept - {"rates"} | {"learning_rates", "callbacks", "observers", "loggers"}
    assert set(run.stateful) < set(run.state_dict())


def test_progress_round_trip() -> None:
    progress, other = Progress(3, 3, refused=2, simulated_seconds={"time": 1.5}), Progress()
    other.load_state_dict(progress.state_dict())
    assert other == progress


def test_a_saved_checkpoint_lets_go_of_the_rows_of_the_one_before(tmp_path: Path) -> None:
    run = fitted(tmp_path, 1, client_state="memmap", checkpoint=None).run
    path = run.folder / "checkpoints" / "mine.ckpt"
    run.save(path)
    run.progress.round = 2
    run.save(path)
    assert load_checkpoint(path)["round"] == 2
    with pytest.raises(ValueError, match=r"no snapshot 'mine.ckpt@1' .* live ones: \['mine.ckpt@2'\]"):
        run.store.release("mine.ckpt@1")


def test_rows_of_a_removed_checkpoint_are_let_go_at_the_next_one(tmp_path: Path) -> None:
    run = fitted(tmp_path, 1, client_state="memmap", checkpoint=None).run
    run.save(tmp_path / "a.ckpt")
    (tmp_path / "a.ckpt").unlink()
    run.save(tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match=r"no snapshot .* live ones: \['[^']*b.ckpt@1'\]"):
        run.store.release(f"{tmp_path / 'a.ckpt'}@1")


def test_when_the_server_is_evaluated(tmp_path: Path) -> None:
    run = fitted(tmp_path, 5).run
    assert [number for number in range(1, 6) if run.is_evaluation_due(number)] == [3, 5]
    run.val_dataloaders = None
    assert not run.is_evaluation_due(3)


class Kept(FederatedCallback):
    """Puts whatever it is given into its state, from a round on."""

    def __init__(self, since: int = 0) -> None:
        self.since = since
        self.state: dict[str, Any] = {}

    def on_round_end(self, round: Round) -> None:
        if round.number >= self.since:
            self.state = {"history": [object()]}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


def test_what_a_checkpoint_cannot_hold_is_refused_before_the_first_round(tmp_path: Path) -> None:
    callback, rounds = Kept(), Rounds()
    callback.state = {"mine": {"draws": np.random.default_rng(0)}}
    with pytest.raises(
        TypeError, match=r"^`Kept.state_dict\(\)`\['mine'\]\['draws'\] is a numpy.random.*Generator, whi"
    ):
        train([Proximal(), callback, rounds], tmp_path, checkpoint=Checkpointing())
    assert rounds.kept == []
    train([Proximal(), callback, rounds], tmp_path, checkpoint=None)
    assert len(rounds.kept) == 3


def test_what_comes_into_a_state_later_is_refused_as_soon_as_it_can_be_seen(tmp_path: Path) -> None:
    """After round 1, though no checkpoint is due; or with the first checkpoint that would hold it."""
    for since, done in ((1, 1), (3, 4)):
        rounds = Rounds()
        with pytest.raises(TypeError, match=r"^`Kept.state_dict\(\)`\['history'\]\[0\] is a builtins.object"):
            train([Kept(since), rounds], tmp_path, max_rounds=6, checkpoint=Checkpointing(every_n_rounds=4))
        assert len(rounds.kept) == done


class Later(FederatedCallback):
    """Has no state before its first round."""

    def on_aggregate(self, round: Round) -> None:
        self.direction = round.update

    def state_dict(self) -> dict[str, Any]:
        return {"direction": self.direction}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.direction = state_dict["direction"]


def test_a_state_that_is_made_in_a_round_is_waited_for(tmp_path: Path) -> None:
    callback = Kept()
    callback.state = {"mine": object()}
    with pytest.raises(TypeError, match=r"^`Kept.state_dict\(\)`\['mine'\] is a builtins.object"):
        train([Later(), callback], tmp_path, checkpoint=Checkpointing(), max_rounds=0)
    trainer = train([Later()], tmp_path, checkpoint=Checkpointing())
    saved = load_checkpoint(Path(trainer.log_dir) / "checkpoints" / "last.ckpt")
    assert saved["callbacks"]["states"][0]["direction"].shape == trainer.server.vector.shape


def test_the_state_of_a_module_is_tried_too(tmp_path: Path) -> None:
    class Extra(Classifier):
        extra: Any = np.float64(0.5)

        def get_extra_state(self) -> Any:
            return self.extra

        def set_extra_state(self, state: Any) -> None:
            self.extra = state

    options: dict[str, Any] = {"checkpoint": Checkpointing(), "max_rounds": 1}
    train([], tmp_path, Extra(mlp().backbone), **options)
    resumed = Extra(mlp().backbone)
    resumed.extra = None
    train([], tmp_path, resumed, ckpt_path="last", **{**options, "max_rounds": 2})
    assert resumed.extra == 0.5
    resumed.extra = object()
    with pytest.raises(TypeError, match=r"^`Extra.state_dict\(\)`\['_extra_state'\] is a builtins.object"):
        train([], tmp_path, resumed, **options)
