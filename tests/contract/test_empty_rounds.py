"""A round without participants moves nothing and costs no upload, in every round, the first included."""

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.empty import MAY_BE_EMPTY, NEVER_STILL, Sometimes, sometimes
from contract.methods import METHODS, OPTIONS, dealt
from worlds import Bystander, mlp, train

from lfl.callbacks import FLSSVRG
from lfl.checkpointing import Checkpointing
from lfl.loggers.csv import read_rows
from lfl.models import Classifier
from lfl.participation import UniformParticipation
from lfl.round import Round


class Watch(Bystander):
    """The server's model after every round, and the hooks that were called in it."""

    observes = True

    def __init__(self) -> None:
        self.vectors: list[torch.Tensor] = []
        self.called: list[list[str]] = []

    def on_round_start(self, round: Round) -> None:
        if not self.vectors:
            self.vectors.append(round.server.clone())
        self.called.append(["start"])

    def on_aggregate(self, round: Round) -> None:
        self.called[-1].append("aggregate")

    def on_server_step(self, round: Round) -> None:
        self.called[-1].append("step")

    def on_round_end(self, round: Round) -> None:
        self.called[-1].append("end")
        self.vectors.append(self.run.server.vector.clone())


def scheduled(monitor: str = "train/loss") -> Classifier:
    """A rate that falls in every round, and one that watches a metric, such as one that training logs."""
    module = mlp(dropout=0.3)

    def configure() -> Any:
        built = torch.optim.SGD(module.parameters(), lr=0.1)
        falling = torch.optim.lr_scheduler.ExponentialLR(built, 0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(built, patience=100)
        return [built], [falling, {"scheduler": plateau, "monitor": monitor}]

    module.configure_optimizers = configure  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(("method", "engine"), dealt(MAY_BE_EMPTY, ("sequential",), ("vectorized",)))
def test_nothing_moves_where_nobody_takes_part(method: str, engine: str, tmp_path: Path) -> None:
    participation, watch = sometimes(method), Watch()
    options: dict[str, Any] = {
        **OPTIONS.get(method, {}),
        "engine": engine,
        "cohort_size": 3,
        "max_rounds": 5,
        "check_val_every_n_rounds": 1,
        "checkpoint": Checkpointing(every_n_rounds=1, keep_all=True),
        "participation": participation,
    }
    stack = METHODS[method]
    logs_loss = method != "fl-ssvrg"  # whose first rounds take gradients over all examples
    monitor = "train/loss" if logs_loss else "val_loss"
    unbroken = train([*stack(), watch], tmp_path / "unbroken", scheduled(monitor), **options)
    rows = dict(read_rows(Path(unbroken.log_dir) / "metrics.csv"))
    before = 0.0
    for number, row in rows.items():
        is_empty = number in participation.nobody
        is_still = is_empty and method not in NEVER_STILL
        assert torch.equal(watch.vectors[number], watch.vectors[number - 1]) == is_still
        assert (row["clients"] == 0.0) == is_empty
        assert (row["comm/up_bytes"] == 0.0) == is_empty
        assert row["comm/total_up_bytes"] == (before := before + row["comm/up_bytes"])
        assert row["lr"] == 0.1 * 0.5 ** (number - 1)
        assert not logs_loss or ("train/loss" in row) != is_empty
        assert "val_acc" in row
        assert watch.called[number - 1] == ["start", *([] if is_empty else ["aggregate"]), "step", "end"]
    assert list(rows) == [1, 2, 3, 4, 5]
    for number in (1, 3):
        path = Path(unbroken.log_dir) / "checkpoints" / f"round_{number:06d}.ckpt"
        resumed = train(stack(), tmp_path / "resumed", scheduled(monitor), ckpt_path=str(path), **options)
        assert torch.equal(resumed.server.vector, unbroken.server.vector)
        assert dict(read_rows(Path(resumed.log_dir) / "metrics.csv")) == rows


def test_the_engine_may_choose_for_itself(tmp_path: Path) -> None:
    """A cohort is as large as the first round with clients asks for."""
    options: dict[str, Any] = {"engine": "auto", "max_rounds": 4}
    nobody = train([], tmp_path, participation=Sometimes(UniformParticipation(5), [1, 3]), **options)
    assert nobody.run.engine.cohort_size in (1, 5)
    named = train(
        [], tmp_path, participation=Sometimes(UniformParticipation(5), [1, 3]), max_rounds=4, engine="vectorized"
    )
    assert named.run.engine.cohort_size == 5


def test_a_run_in_which_nobody_ever_takes_part(tmp_path: Path) -> None:
    for engine in ("auto", "sequential", "vectorized"):
        trainer = train(
            [], tmp_path, engine=engine, participation=Sometimes(UniformParticipation(5), list(range(1, 30)))
        )
        before = torch.cat([p.detach().flatten() for p in mlp().double().parameters()])
        assert torch.equal(trainer.server.vector, before)
        assert trainer.summary.last("clients") == (0.0, 3)


def test_epochs_that_lose_a_round_are_refused(tmp_path: Path) -> None:
    """Clients of round 2 would have stored nothing in round 1."""
    participation = Sometimes(UniformParticipation(5, rounds_per_draw=2), [1, 3])
    with pytest.raises(ValueError, match="FLSSVRG needs the same participants for the `epoch_rounds=2` of an epoch"):
        train([FLSSVRG(20, 30.5, epoch_rounds=2)], tmp_path, participation=participation)
