"""The clients' own models on their own data."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from personal_toy import ALL_TUNED, ERRORS, NUMBERS, ONE_STEP, SIZES, train_toy
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
from worlds import HEAD, accuracy_of, head_of, mlp, ragged_data, train

from lfl.aggregation import MeanAggregator
from lfl.callbacks import ClientEvaluation, PersonalParameters
from lfl.callbacks.client_evaluation import histogram_of
from lfl.checkpointing import Checkpointing
from lfl.engine import LocalPhase
from lfl.loggers.csv import read_rows
from lfl.models import Classifier
from lfl.participation import FullParticipation, UniformParticipation
from lfl.reporting.client_table import ClientTable, read_clients
from lfl.scopes import ClientResult
from lfl.storage.checkpoint_file import load_checkpoint
from lfl.trainer import FederatedTrainer


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_every_scope_and_number_by_hand(engine: str, tmp_path: Path) -> None:
    trainer = train_toy(tmp_path, engine=engine)
    logged = dict(read_rows(f"{trainer.log_dir}/metrics.csv"))[1]
    for scope, (mean, client_mean, client_std, worst) in NUMBERS.items():
        found = {name.removeprefix(f"{scope}/"): v for name, v in logged.items() if name.startswith(f"{scope}/")}
        counts = {"clients": 1.0} if scope == "new" else {"clients": 3.0, "clients_left_out": 1.0}
        assert found == pytest.approx(
            {
                "val_loss": mean,
                "val_loss/client_mean": client_mean,
                "val_loss/client_std": client_std,
                "val_loss/worst_tenth": worst,
                **counts,
            },
            abs=1e-12,
        ), scope
    rows = list(read_clients(Path(trainer.log_dir) / "clients.csv"))
    expected = [(1, s, c, SIZES[c], {"val_loss": v}) for s, errors in ERRORS.items() for c, v in errors.items()]
    assert rows == expected


def test_all_parameters_may_be_fine_tuned(tmp_path: Path) -> None:
    """And the one scope of old settings has the name it was given."""
    whole = ClientEvaluation(1, [LocalPhase(["*"], steps=1, lr=0.5)], name="whole")
    trainer = train_toy(tmp_path, whole)
    rows = read_clients(Path(trainer.log_dir) / "clients.csv")
    assert {client: metrics["val_loss"] for _, _, client, _, metrics in rows} == ALL_TUNED
    assert trainer.summary.last("whole/val_loss")[0] == 13.5 / 4
    assert trainer.summary.last("personal/val_loss") is None


def test_a_resumed_run_goes_on_with_the_table(tmp_path: Path) -> None:
    """Rows after the checkpoint are not taken over, and none is there twice, whichever callback wrote it."""

    def settings(rounds: int) -> dict[str, Any]:
        return {"max_rounds": rounds, "checkpoint": Checkpointing(every_n_rounds=2, keep_all=True)}

    unbroken = train_toy(tmp_path / "unbroken", **settings(4))
    saved = Path(unbroken.log_dir) / "checkpoints" / "round_000002.ckpt"
    evaluation = ClientEvaluation(1, ONE_STEP, scopes=["server", "personal", "fine_tuned", "new"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("personal_toy.train", lambda stack, *more, **o: train([*stack, evaluation], *more, **o))
        resumed = train_toy(tmp_path, ClientEvaluation(1, name="again"), ckpt_path=str(saved), **settings(4))
    texts = [(Path(trainer.log_dir) / "clients.csv").read_text().splitlines() for trainer in (unbroken, resumed)]
    assert [line for line in texts[1] if ",again," not in line] == texts[0]
    assert [line.split(",")[0] for line in texts[1] if ",again," in line] == ["3"] * 3 + ["4"] * 3


def test_rows_that_cannot_be_written_wait_in_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(table: ClientTable, rows: Any) -> None:
        raise OSError(28, f"No space left for {len(rows)} rows.")

    whole = list(read_clients(Path(train_toy(tmp_path / "whole", max_rounds=2).log_dir) / "clients.csv"))
    with monkeypatch.context() as patch:
        patch.setattr(ClientTable, "append", full)
        with pytest.warns(UserWarning, match="No space left for 10 rows.*goes on with `--ckpt_path last`"):
            stopped = train_toy(tmp_path, max_rounds=2, checkpoint=Checkpointing())
    assert stopped.current_round == 1
    resumed = train_toy(tmp_path, max_rounds=2, checkpoint=Checkpointing(), ckpt_path="last")
    assert list(read_clients(Path(resumed.log_dir) / "clients.csv")) == whole


def test_a_picture_of_how_clients_are_spread(tmp_path: Path) -> None:
    scopes = ["server", "personal"]
    trainer = train_toy(tmp_path, ClientEvaluation(1, scopes=scopes, histogram=True), max_rounds=2)
    assert [path.name for path in (Path(trainer.log_dir) / "pictures").iterdir()] == ["clients_000002.png"]
    results = {"server": [ClientResult(0, 1, {"a": 1.0, "b": math.nan}), ClientResult(1, 1, {"a": 3.0})], "own": []}
    figure = histogram_of(results, 7)
    first, second = figure.axes
    assert (first.get_xlabel(), second.get_xlabel()) == ("a", "b")
    assert [line.get_xdata()[0] for line in first.lines] == [2.0]
    assert second.lines[:] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scopes": []}, r"`scopes=\[\]` of ClientEvaluation must name at least one scope"),
        ({"scopes": ["server", "server"]}, "and none twice"),
        ({"scopes": ["servers"]}, "`scopes=servers` of ClientEvaluation must be one of server, personal"),
        ({"scopes": ["server"], "name": "x"}, "`name=x` of ClientEvaluation is that of its one scope"),
        ({"scopes": ["new"]}, "The scope 'new' of ClientEvaluation needs `fine_tune`"),
        ({"scopes": ["server"], "fine_tune": ONE_STEP}, "`fine_tune` of ClientEvaluation is of no use to"),
    ],
)
def test_scopes_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClientEvaluation(**arguments)


def test_new_clients_must_be_held_out(tmp_path: Path) -> None:
    evaluation = ClientEvaluation(1, ONE_STEP, scopes=["new"])
    with pytest.raises(ValueError, match=r"hold some out by `participation: lfl.participation.HeldOutParticipation`"):
        train_toy(tmp_path, evaluation, participation=FullParticipation())


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
    """Their own models, of the rows that the checkpoint holds, also after fine-tuning: to the bit the last of fit."""

    class Decaying(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    def stack() -> list[Any]:
        scopes = ["server", "personal", "fine_tuned"]
        return [PersonalParameters(HEAD), ClientEvaluation(1, [LocalPhase(HEAD, epochs=2)], scopes=scopes)]

    def module() -> Classifier:
        return Decaying(mlp().backbone)

    options = {"client_state": "memmap", "aggregator": MeanAggregator()}
    trained = train(stack(), tmp_path, module(), checkpoint=Checkpointing(), **options)
    last = dict(read_rows(f"{trained.log_dir}/metrics.csv"))[3]
    clients = {name: value for name, value in last.items() if name.startswith(("server/", "personal/", "fine_tuned/"))}
    assert len(clients) == 3 * (2 * 4 + 1)
    rows = [row for row in read_clients(Path(trained.log_dir) / "clients.csv") if row[0] == 3]
    fresh = train(stack(), tmp_path / "other", module(), max_rounds=0, **{**options, "aggregator": MeanAggregator()})
    path = f"{trained.log_dir}/checkpoints/last.ckpt"
    for stage in ("test", "validate"):
        metrics = getattr(fresh, stage)(module(), ragged_data(), ckpt_path=path)
        assert {name: metrics[name] for name in clients} == clients
        assert f"{stage[:3] if stage == 'validate' else stage}_acc" in metrics
        assert list(read_clients(Path(fresh.log_dir) / "clients.csv")) == rows
    assert torch.equal(fresh.server.vector, trained.server.vector)
    # Without a checkpoint they are those of the run that has just ended.
    again = trained.test()
    assert {name: again[name] for name in clients} == clients


def test_personal_models_are_tested_without_being_asked_for(tmp_path: Path) -> None:
    """As ClientEvaluation does; weights alone have none."""
    trained = train([PersonalParameters(HEAD), ClientEvaluation(1)], tmp_path, checkpoint=Checkpointing())
    last = dict(read_rows(f"{trained.log_dir}/metrics.csv"))[3]
    plain = FederatedTrainer(
        callbacks=[PersonalParameters(HEAD)],
        default_root_dir=str(tmp_path / "other"),
        precision="64-true",
        engine="sequential",
        participation=UniformParticipation(clients_per_round=5, rounds_per_draw=2),
        accelerator="cpu",
        enable_progress_bar=False,
    )
    for stage in (plain.test, plain.validate):
        metrics = stage(mlp(), ragged_data(), ckpt_path=f"{trained.log_dir}/checkpoints/last.ckpt")
        personal = {name: value for name, value in metrics.items() if name.startswith("personal/")}
        assert len(personal) == 9
        assert personal == {name: last[name] for name in personal}
    trained.save_checkpoint(weights := tmp_path / "weights.ckpt", weights_only=True)
    assert "personal/val_acc" not in plain.test(mlp(), ragged_data(), ckpt_path=str(weights))
    # Nor have other data these clients.
    other = plain.test(mlp(), ragged_data(seed=1), ckpt_path=f"{trained.log_dir}/checkpoints/last.ckpt")
    assert "test_acc" in other
    assert "personal/val_acc" not in other


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
