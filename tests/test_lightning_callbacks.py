"""Lightning's own callbacks beside an algorithm: each does what it does under Lightning's trainer, a round an epoch."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, callbacks
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from worlds import mlp, ragged_data, train

from lfl.callbacks import Scaffold
from lfl.checkpointing import Checkpointing
from lfl.lightning_callbacks import LightningCallbacks, check_callback, has_hook, is_watching, prepare
from lfl.loggers.csv import read_rows
from lfl.models import MLP, Classifier
from lfl.storage.checkpoint_file import CheckpointError, load_checkpoint
from lfl.trainer import FederatedTrainer

EVERY = {"check_val_every_n_rounds": 1, "checkpoint": Checkpointing(every_n_rounds=1)}


def stopping(**options: Any) -> callbacks.EarlyStopping:
    # A loss that must fall by more than it does in late rounds.
    return callbacks.EarlyStopping("val_loss", **{"min_delta": 0.05, "patience": 2, **options})


def test_early_stopping_ends_the_run_and_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    options: dict[str, Any] = {**EVERY, "max_rounds": 60}
    straight = train([Scaffold(), stopping()], tmp_path / "straight", **options)
    rounds = straight.current_round
    losses = [row["val_loss"] for _, row in read_rows(straight.log_dir + "/metrics.csv")]
    best, waits = float("inf"), [0]
    for loss in losses:
        waits.append(0 if loss < best - 0.05 else waits[-1] + 1)
        best = loss if waits[-1] == 0 else best
    assert 3 < rounds == waits.index(2) == len(losses) < 60

    broken = train([Scaffold(), stopping()], tmp_path / "broken", **{**options, "max_rounds": rounds - 1})
    assert broken.current_round == rounds - 1
    resumed = train([Scaffold(), stopping()], tmp_path / "broken", ckpt_path="last", **options)
    assert resumed.current_round == rounds
    assert torch.equal(resumed.server.vector, straight.server.vector)
    assert resumed.early_stopping_callback is not None
    assert resumed.early_stopping_callback.stopped_epoch == rounds - 1
    name = "metrics.csv"
    assert (Path(resumed.log_dir) / name).read_bytes() == (Path(straight.log_dir) / name).read_bytes()


def test_early_stopping_after_evaluations_that_are_rarer_than_rounds(tmp_path: Path) -> None:
    trainer = train([stopping(patience=1, min_delta=10.0)], tmp_path, max_rounds=20, check_val_every_n_rounds=3)
    assert trainer.current_round == 6  # the first evaluation is the best, the second is no better


def test_model_checkpoint_keeps_the_best_and_a_run_goes_on_from_it(tmp_path: Path) -> None:
    keeper = callbacks.ModelCheckpoint(monitor="val_acc", mode="max", save_top_k=2, filename="{epoch}-{val_acc:.3f}")
    options: dict[str, Any] = {"check_val_every_n_rounds": 1, "client_state": "memmap"}
    trainer = train([Scaffold(), keeper], tmp_path, max_rounds=5, **options)
    folder = Path(trainer.log_dir) / "checkpoints"
    files = sorted(path.name for path in folder.iterdir())
    accuracies = [row["val_acc"] for _, row in read_rows(trainer.log_dir + "/metrics.csv")]
    best = sorted(range(5), key=lambda epoch: accuracies[epoch], reverse=True)
    assert len(files) == 2
    assert f"epoch={best[0]}-val_acc={accuracies[best[0]]:.3f}.ckpt" in files
    assert keeper.best_model_score == pytest.approx(max(accuracies), abs=1e-6)
    state = load_checkpoint(Path(keeper.best_model_path))
    assert (state["round"], state["epoch"], state["global_step"]) == (best[0] + 1, best[0], best[0] + 1)

    resumed = train([Scaffold()], tmp_path, ckpt_path=str(folder / files[0]), max_rounds=7, **options)
    straight = train([Scaffold()], tmp_path, max_rounds=7, **options)
    assert torch.equal(resumed.server.vector, straight.server.vector)


def test_model_checkpoint_in_a_folder_of_its_own(tmp_path: Path) -> None:
    keeper = callbacks.ModelCheckpoint(dirpath=tmp_path / "elsewhere", every_n_epochs=2, save_top_k=-1, save_last=True)
    options: dict[str, Any] = {"client_state": "memmap", "check_val_every_n_rounds": 1}
    train([Scaffold(), keeper], tmp_path / "runs", max_rounds=5, **options)
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {
        *("epoch=1-step=2.ckpt", "epoch=3-step=4.ckpt", "last.ckpt"),
    }
    resumed = train(
        [Scaffold()], tmp_path / "runs", ckpt_path=str(tmp_path / "elsewhere" / "last.ckpt"), max_rounds=6, **options
    )
    straight = train([Scaffold()], tmp_path / "runs", max_rounds=6, **options)
    assert torch.equal(resumed.server.vector, straight.server.vector)


def test_each_run_has_its_own_folder_of_a_model_checkpoint(tmp_path: Path) -> None:
    keeper = callbacks.ModelCheckpoint()
    options: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "client_state": "memmap"}
    trainer = FederatedTrainer(max_rounds=2, callbacks=[Scaffold(), keeper], default_root_dir=str(tmp_path), **options)
    trainer.validate(mlp(), ragged_data())
    for _ in range(2):
        trainer.fit(mlp(), ragged_data())
        assert Path(keeper.best_model_path).parent == Path(trainer.log_dir) / "checkpoints"
    trained = trainer.log_dir
    trainer.test()
    assert keeper.dirpath == str(Path(trained) / "checkpoints")


def test_the_last_file_of_a_model_checkpoint_is_one_to_go_on_from(tmp_path: Path) -> None:
    options: dict[str, Any] = {**EVERY, "client_state": "memmap"}
    train([Scaffold(), callbacks.ModelCheckpoint(save_last=True)], tmp_path, max_rounds=3, **options)
    resumed = train([Scaffold()], tmp_path, ckpt_path="last", max_rounds=5, **options)
    straight = train([Scaffold()], tmp_path / "straight", max_rounds=5, **options)
    assert torch.equal(resumed.server.vector, straight.server.vector)
    for _ in range(2):  # a file may be written again after the same round
        straight.save_checkpoint(tmp_path / "again.ckpt")
    assert load_checkpoint(tmp_path / "again.ckpt")["round"] == 5


def test_files_of_a_model_checkpoint_hold_what_others_came_to_in_the_round(tmp_path: Path) -> None:
    keeper = callbacks.ModelCheckpoint(filename="{epoch}", save_top_k=-1)
    train([keeper, stopping(min_delta=10.0, patience=3)], tmp_path, max_rounds=2, **EVERY)
    state = load_checkpoint(Path(str(keeper.dirpath)) / "epoch=1.ckpt")["lightning"]
    assert next(value for key, value in state.items() if key.startswith("EarlyStopping"))["wait_count"] == 1


def test_weights_alone_can_be_evaluated_and_not_be_gone_on_from(tmp_path: Path) -> None:
    keeper = callbacks.ModelCheckpoint(save_weights_only=True, filename="weights")
    trainer = train([keeper], tmp_path, max_rounds=2)
    path = Path(trainer.log_dir) / "checkpoints" / "weights.ckpt"
    backbone = MLP(in_features=64, hidden=[12], num_classes=4)
    loaded = Classifier.load_from_checkpoint(path, backbone=backbone).state_dict()
    assert all(torch.equal(loaded[name], value.float()) for name, value in trainer.server_state_dict().items())
    fresh = FederatedTrainer(default_root_dir=str(tmp_path), accelerator="cpu", enable_progress_bar=False)
    assert fresh.validate(mlp(), ragged_data(), ckpt_path=str(path))["val_loss"] > 0
    with pytest.raises(CheckpointError, match=r"weights.ckpt was saved with `weights_only`"):
        train([], tmp_path, ckpt_path=str(path))


def test_the_best_checkpoint_by_name(tmp_path: Path) -> None:
    trainer = train([], tmp_path, max_rounds=4, **{**EVERY, "checkpoint": Checkpointing(monitor="val_acc")})
    best = load_checkpoint(Path(trainer.log_dir) / "checkpoints" / "best.ckpt")
    accuracies = [row["val_acc"] for _, row in read_rows(trainer.log_dir + "/metrics.csv")]
    assert accuracies[best["round"] - 1] == max(accuracies)
    assert trainer.validate(ckpt_path="best")["val_acc"] == pytest.approx(max(accuracies), abs=1e-12)
    with pytest.raises(CheckpointError, match=r"There is no best checkpoint.*`checkpoint.monitor` makes one"):
        train([], tmp_path / "other", ckpt_path="best")


class Scheduled(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)}


def scheduled() -> Scheduled:
    torch.manual_seed(0)
    return Scheduled(MLP(in_features=64, hidden=[12], num_classes=4))


def test_learning_rates_are_monitored(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, name="", version="")
    trainer = train([callbacks.LearningRateMonitor()], tmp_path, scheduled(), logger=board, max_rounds=3)
    rows = dict(read_rows(trainer.log_dir + "/metrics.csv"))
    assert [rows[number]["lr-SGD"] for number in (1, 2, 3)] == [0.1, 0.05, 0.025]
    assert all("train/loss" in row for row in rows.values())  # one row a round
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("lr-SGD")
    assert [(event.step, round(event.value, 6)) for event in events] == [(1, 0.1), (2, 0.05), (3, 0.025)]


def test_a_timer_ends_the_run(tmp_path: Path) -> None:
    timer = callbacks.Timer(duration={"microseconds": 1})
    assert train([timer], tmp_path, max_rounds=50).current_round == 1
    assert timer.time_elapsed("train") > 0


def test_summaries_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    train([callbacks.ModelSummary()], tmp_path, max_rounds=1)
    module = mlp().double()
    module.example_input_array = torch.zeros(2, 1, 8, 8, dtype=torch.float64)
    train([callbacks.RichModelSummary(max_depth=2)], tmp_path, module, max_rounds=1)
    said = capsys.readouterr().out
    assert "Trainable params: 832" in said
    assert "[2, 1, 8, 8]" in said
    assert module.trainer.current_round == 1


class Seen(Callback):
    """Notes the hooks that are called, and what the trainer says in them."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.facts: dict[str, Any] = {}
        self.count = 0

    def _note(self, name: str, trainer: Any) -> None:
        self.hooks.append(f"{name} {trainer.current_epoch}")

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        self._note(f"setup {stage}", trainer)

    def teardown(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        self._note(f"teardown {stage}", trainer)

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._note("fit start", trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self._note("epoch start", trainer)
        self.facts["training"] = trainer.training, trainer.validating, trainer.state.stage.value
        pl_module.log("mine", float(trainer.current_epoch))

    def on_validation_batch_end(self, trainer: Any, pl_module: LightningModule, outputs: Any, *batch: Any) -> None:
        self.facts["validating"] = trainer.training, trainer.validating, trainer.state.stage.value
        self.facts["batch"] = len(batch[0][0]), batch[1:]

    def on_validation_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self._note("validation end", trainer)
        self.facts["val_loss"] = float(trainer.callback_metrics["val_loss"])

    def on_train_epoch_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self._note("epoch end", trainer)
        self.facts["train/loss"] = float(trainer.callback_metrics["train/loss"])

    def on_fit_end(self, trainer: Any, pl_module: LightningModule) -> None:
        self._note("fit end", trainer)

    def on_exception(self, trainer: Any, pl_module: LightningModule, exception: BaseException) -> None:
        self._note(f"{type(exception).__name__}: {exception}", trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = self.count

    def on_load_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.facts["loaded"] = checkpoint["mine"]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


def test_hooks_in_lightnings_order(tmp_path: Path) -> None:
    seen = Seen()
    seen.count = 7
    trainer = train([seen], tmp_path, max_rounds=2, **EVERY)
    rounds = [text for n in (0, 1) for text in (f"epoch start {n}", f"validation end {n}", f"epoch end {n}")]
    assert seen.hooks == ["setup fit 0", "fit start 0", *rounds, "fit end 2", "teardown fit 2"]
    assert seen.facts["training"] == (True, False, "train")
    assert seen.facts["validating"] == (False, True, "validate")
    assert seen.facts["batch"] == (40, (0, 0))
    rows = dict(read_rows(trainer.log_dir + "/metrics.csv"))
    assert [rows[number]["mine"] for number in (1, 2)] == [0.0, 1.0]
    assert (rows[2]["val_loss"], rows[2]["train/loss"]) == (seen.facts["val_loss"], seen.facts["train/loss"])

    again = Seen()
    train([again], tmp_path, ckpt_path="last", max_rounds=3, **EVERY)
    assert (again.count, again.facts["loaded"]) == (7, 7)
    assert again.hooks[2] == "epoch start 2"


def test_a_state_that_cannot_be_saved_is_refused_before_round_1(tmp_path: Path) -> None:
    class Odd(Callback):
        rounds = 0

        def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
            self.rounds += 1

        def state_dict(self) -> dict[str, Any]:
            return {"mine": object()}

    odd = Odd()
    with pytest.raises(TypeError, match=r"Odd.state_dict\(\)`\['mine'\] is a builtins.object, which a checkpoint"):
        train([odd], tmp_path, **EVERY)
    assert odd.rounds == 0


def test_what_a_hook_puts_into_checkpoints_is_tried_after_round_1(tmp_path: Path) -> None:
    class Odd(Callback):
        def on_save_checkpoint(self, trainer: Any, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
            checkpoint["mine"] = object()

    with pytest.raises(TypeError, match=r"`checkpoint\['mine'\]` is a builtins.object, which a checkpoint"):
        train([Odd()], tmp_path, max_rounds=5, checkpoint=Checkpointing(every_n_rounds=5))


def test_callbacks_appended_to_the_list_count(tmp_path: Path) -> None:
    trainer = FederatedTrainer(
        max_rounds=9, accelerator="cpu", enable_progress_bar=False, default_root_dir=str(tmp_path)
    )
    trainer.callbacks.append(stopping(patience=1, min_delta=10.0))
    trainer.fit(mlp(), ragged_data())
    assert trainer.current_round == 2
    trainer.fit(mlp(), ragged_data())
    assert len(trainer.callbacks) == 1


def test_what_hooks_log_before_the_batches_of_an_evaluation(tmp_path: Path) -> None:
    def log(name: str) -> Any:
        return lambda trainer, module: module.log(name, 3.0)

    hooks = ("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end")
    logging = callbacks.LambdaCallback(**{hook: log(hook) for hook in hooks})
    metrics = train([logging], tmp_path, max_rounds=1, **EVERY).callback_metrics
    assert [float(metrics[hook]) for hook in hooks] == [3.0, 3.0, 3.0]


def test_two_states_under_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="`callbacks` has more than one EarlyStopping with the `state_key`"):
        FederatedTrainer(callbacks=[stopping(), stopping(patience=9)])
    FederatedTrainer(callbacks=[stopping(), stopping(mode="max"), callbacks.Timer()])


def test_an_exception_is_shown_to_callbacks(tmp_path: Path) -> None:
    class Failing(Classifier):
        def on_train_epoch_end(self) -> None:
            raise OverflowError("mine")

    seen = Seen()
    with pytest.raises(OverflowError):
        train([seen], tmp_path, Failing(MLP(in_features=64, hidden=[4], num_classes=4)))
    assert seen.hooks[-1] == "OverflowError: mine 0"


def test_callbacks_of_the_module_replace_those_of_their_type(tmp_path: Path) -> None:
    class Bringing(Classifier):
        def configure_callbacks(self) -> list[Callback]:
            return [stopping(patience=1, min_delta=10.0), Scaffold()]

    torch.manual_seed(0)
    module = Bringing(MLP(in_features=64, hidden=[12], num_classes=4), lr=0.1)
    trainer = train([stopping(patience=9, min_delta=10.0)], tmp_path, module, max_rounds=20, **EVERY)
    assert trainer.current_round == 2
    assert torch.equal(trainer.server.vector, train([Scaffold()], tmp_path, max_rounds=2).server.vector)


def test_a_checkpoint_in_the_midst_of_a_round_waits_for_its_end(tmp_path: Path) -> None:
    class Saving(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

    trainer = train([Saving()], tmp_path, max_rounds=2)
    assert load_checkpoint(tmp_path / "0.ckpt")["round"] == 1
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    assert load_checkpoint(tmp_path / "after.ckpt")["round"] == 2
    resumed = train([], tmp_path, ckpt_path=str(tmp_path / "0.ckpt"), max_rounds=2)
    assert torch.equal(resumed.server.vector, trainer.server.vector)


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            lambda: callbacks.StochasticWeightAveraging(0.1),
            "StochasticWeightAveraging, which has no meaning here: every",
        ),
        (lambda: callbacks.GradientAccumulationScheduler({0: 2}), "set `data.batch_size`"),
        (callbacks.BatchSizeFinder, "set `data.batch_size`"),
        (callbacks.LearningRateFinder, "try rates with `--optimizer.lr`"),
        (callbacks.BackboneFinetuning, "set `requires_grad` in the module's `on_train_epoch_start`"),
        (lambda: callbacks.ModelPruning("l1_unstructured", amount=0.5), "ModelPruning"),
        (callbacks.RichProgressBar, "`enable_progress_bar=False` hides it"),
        (callbacks.DeviceStatsMonitor, "DeviceStatsMonitor"),
        (lambda: callbacks.LearningRateMonitor("step"), "logging_interval='step'\\)` would log nothing: use 'epoch'"),
        (lambda: callbacks.ModelCheckpoint(every_n_train_steps=3), r"every_n_train_steps=3\)` would save nothing"),
        (
            lambda: callbacks.ModelCheckpoint(save_last=True, save_weights_only=True),
            "would put weights in the place of `checkpoints/last.ckpt`",
        ),
        (lambda: torch.nn.Linear(1, 1), "`callbacks` takes FederatedCallbacks and Lightning's callbacks, not Linear"),
    ],
)
def test_what_has_no_meaning_is_refused(callback: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedTrainer(callbacks=[callback()])


@pytest.mark.skipif(
    "save_on_exception" not in inspect.signature(callbacks.ModelCheckpoint).parameters, reason="before lightning 2.6"
)
def test_a_checkpoint_in_the_midst_of_a_failing_round_is_refused() -> None:
    with pytest.raises(ValueError, match="the middle of a round is no place to go on from"):
        FederatedTrainer(callbacks=[callbacks.ModelCheckpoint(save_on_exception=True)])


def test_hooks_that_are_never_called_are_warned_of() -> None:
    class Batches(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise AssertionError

    with pytest.warns(UserWarning, match="Batches has on_train_batch_end, which lfl does not call"):
        check_callback(Batches())
    with pytest.warns(UserWarning, match="LambdaCallback has on_before_zero_grad"):
        check_callback(callbacks.LambdaCallback(on_before_zero_grad=lambda *_: None))


def test_which_hooks_a_callback_has(tmp_path: Path) -> None:
    assert has_hook(callbacks.LambdaCallback(on_fit_start=lambda *_: None), "on_fit_start")
    assert not has_hook(callbacks.LambdaCallback(on_fit_start=lambda *_: None), "on_fit_end")
    assert is_watching(stopping())
    assert not is_watching(Seen())
    keeper = callbacks.ModelCheckpoint()
    prepare(keeper, tmp_path)
    assert keeper.dirpath == str(tmp_path / "checkpoints")


def test_callbacks_may_add_metrics() -> None:
    calls = LightningCallbacks(None, mlp(), [])
    calls.publish({"a": 1.0})
    calls.metrics["b"] = torch.tensor(2.0)
    calls.publish({"a": 3.0})
    assert {name: float(value) for name, value in calls.metrics.items()} == {"a": 3.0, "b": 2.0}
    assert not calls.watch
