"""The clients' own models on their own data."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
from worlds import HEAD, accuracy_of, head_of, mlp, ragged_data, train

from lfl.callbacks import (
    ClientEvaluation,
    PersonalParameters,
)
from lfl.checkpointing import Checkpointing
from lfl.engine import LocalPhase
from lfl.loggers.csv import read_rows
from lfl.models import Classifier
from lfl.storage.checkpoint_file import load_checkpoint


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_personal_accuracy(engine: str, tmp_path: Path) -> None:
    stack = [PersonalParameters(HEAD), ClientEvaluation(every_n_rounds=2)]
    trainer = train(stack, tmp_path, engine=engine, max_rounds=4)
    ids = (trainer.data.client_test_sizes > 0).nonzero().squeeze(1)
    head = head_of(trainer)
    params = trainer.server.vector.repeat(len(ids), 1)
    own = trainer.store.gather("personal", ids)
    seen = ~torch.isnan(own[:, 0])
    params[seen.nonzero(), head.nonzero().T] = own[seen]
    assert trainer.summary.last("personal/val_acc")[0] == pytest.approx(accuracy_of(trainer, ids, params), abs=1e-12)
    assert trainer.summary.last("personal/val_acc/worst_tenth")[0] <= trainer.summary.last("personal/val_acc")[0]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_evaluation_leaves_the_training_alone(engine: str, tmp_path: Path) -> None:
    plain = train([], tmp_path, mlp(dropout=0.3), engine=engine)
    phases = [LocalPhase(HEAD, epochs=2, lr=0.05)]
    tuned = train([ClientEvaluation(1, fine_tune=phases)], tmp_path, mlp(dropout=0.3), engine=engine)
    assert torch.equal(tuned.server.vector, plain.server.vector)


def test_testing_a_checkpoint_evaluates_its_clients(tmp_path: Path) -> None:
    """Their own models, of the rows that the checkpoint holds, also after fine-tuning."""

    def stack() -> list[Any]:
        tuned = ClientEvaluation(1, fine_tune=[LocalPhase(HEAD, epochs=2)], name="tuned")
        return [PersonalParameters(HEAD), ClientEvaluation(1), tuned]

    trained = train(stack(), tmp_path, checkpoint=Checkpointing(), client_state="memmap")
    last = dict(read_rows(f"{trained.log_dir}/metrics.csv"))[3]
    fresh = train(stack(), tmp_path / "other", max_rounds=0, client_state="memmap")
    path = f"{trained.log_dir}/checkpoints/last.ckpt"
    metrics = fresh.test(mlp(), ragged_data(), ckpt_path=path)
    clients = {name: value for name, value in last.items() if name.startswith(("personal/", "tuned/"))}
    assert len(clients) == 8
    assert {name: metrics[name] for name in clients} == pytest.approx(clients, rel=1e-12)
    assert "test_acc" in metrics
    assert torch.equal(fresh.server.vector, trained.server.vector)


def test_two_evaluations_of_different_names(tmp_path: Path) -> None:
    tuned = ClientEvaluation(1, fine_tune=[LocalPhase(HEAD, epochs=2)], name="tuned")
    trainer = train([ClientEvaluation(1), tuned], tmp_path, max_rounds=1)
    assert trainer.summary.last("personal/val_acc")[0] == trainer.summary.last("val_acc")[0]
    assert trainer.summary.last("tuned/val_loss")[0] < trainer.summary.last("personal/val_loss")[0]


class Measured(Classifier):
    """Logs metrics of every kind: numbers and Metric objects, with names that tell and names that do not."""

    def __init__(self) -> None:
        super().__init__(mlp().backbone, lr=0.1)
        self.f1 = MulticlassF1Score(4, average="micro")
        self.loss_of_rank = MulticlassAUROC(4)
        self.mean = MeanMetric()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        logits, targets = self(batch[0]), batch[1]
        self.f1.update(logits, targets)
        self.loss_of_rank.update(logits, targets)
        self.mean.update(logits.abs().mean())
        self.log("val_quality", self.f1)
        self.log("val_ranking_loss", self.loss_of_rank)  # large is good, whatever its name says
        self.log("val_size", self.mean)
        self.log("val_score", logits.mean())
        self.log("val_top2_err", (logits.topk(2).indices != targets[:, None]).all(1).double().mean())
        self.log("val_rmse", logits.square().mean().sqrt())


LARGE, SMALL = ("val_quality", "val_ranking_loss"), ("val_top2_err", "val_rmse")


@pytest.mark.filterwarnings("ignore:No positive samples", "ignore:Average precision score", "ignore:No negative")
def test_the_worst_tenth_of_every_metric(tmp_path: Path) -> None:
    data = ragged_data(num_clients=20)
    evaluation = ClientEvaluation(1, direction={"val_score": "min"})
    with pytest.warns(UserWarning, match="ClientEvaluation") as warned:
        trainer = train([evaluation], tmp_path, Measured(), data, max_rounds=2, check_val_every_n_rounds=1)
    told = [str(warning.message) for warning in warned if "ClientEvaluation" in str(warning.message)]
    assert told == [
        "ClientEvaluation: 'val_size', of which nothing tells whether it should be large or small: give `direction: "
        "{val_size: max}`, or min, for `personal/val_size/worst_tenth`."
    ]
    ids = (data.client_test_sizes > 0).nonzero().squeeze(1)
    count = math.ceil(len(ids) / 10)
    each = trainer.run.evaluate_clients(ids, trainer.server.vector.repeat(len(ids), 1))
    for name in (*LARGE, *SMALL, "val_score"):
        values = sorted((metrics[name] for metrics in each), reverse=name not in LARGE)
        assert values[0] != values[-1]
        expected = sum(values[:count]) / count
        assert trainer.summary.last(f"personal/{name}/worst_tenth")[0] == pytest.approx(expected, abs=1e-12), name
    assert trainer.summary.last("personal/val_size/worst_tenth") is None
    assert trainer.summary.last("personal/val_size")[0] > 0
    # The same direction decides everywhere.
    for prefix in ("", "personal/"):
        for name in LARGE:
            kept = [m[prefix + name] for _, m in read_rows(Path(trainer.log_dir) / "metrics.csv")]
            assert trainer.summary.best(prefix + name)[0] == max(kept)
    assert trainer.summary.best("val_size") is None


def test_the_best_checkpoint_follows_the_metric_object(tmp_path: Path) -> None:
    checkpoint = Checkpointing(monitor="val_ranking_loss", every_n_rounds=100)
    trainer = train([], tmp_path, Measured(), max_rounds=3, check_val_every_n_rounds=1, checkpoint=checkpoint)
    rows = dict(read_rows(Path(trainer.log_dir) / "metrics.csv"))
    best = max(rows, key=lambda number: rows[number]["val_ranking_loss"])
    assert load_checkpoint(Path(trainer.log_dir) / "checkpoints" / "best.ckpt")["round"] == best > 1


@pytest.mark.filterwarnings("ignore:ClientEvaluation. 'val_")
def test_a_direction_of_what_is_not_logged_is_warned_of_once(tmp_path: Path) -> None:
    evaluation = ClientEvaluation(1, direction={"val_acc": "min", "val_akk": "max"})
    with pytest.warns(UserWarning, match=r"^ClientEvaluation: 'val_akk', which the module does not log\.$") as warned:
        trainer = train([evaluation], tmp_path, max_rounds=2)
    assert len(warned) == 1
    accuracies = sorted(
        m["val_acc"] for m in trainer.run.evaluate_clients(torch.arange(8), trainer.server.vector.repeat(8, 1)) if m
    )
    assert trainer.summary.last("personal/val_acc/worst_tenth")[0] == pytest.approx(accuracies[-1])


def test_directions_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"`direction\['a'\]=up` of ClientEvaluation must be one of max, min"):
        ClientEvaluation(direction={"a": "up"})  # type: ignore[dict-item]


def test_a_client_without_a_value_is_the_worst(tmp_path: Path) -> None:
    class Undefined(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            is_odd = len(batch[1]) % 2
            self.log("val_acc", torch.tensor(math.nan if is_odd else 0.5))

    trainer = train([ClientEvaluation(1)], tmp_path, Undefined(mlp().backbone, lr=0.1), max_rounds=1)
    assert math.isnan(trainer.summary.last("personal/val_acc/worst_tenth")[0])
