"""A module written for lightning.Trainer trains here unchanged, and one written here trains there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import images, mlp, ragged_data, train
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from lfl.data import DatasetSource, FederatedDataModule, IIDPartitioner
from lfl.participation import FullParticipation
from lfl.trainer import FederatedTrainer

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
LIGHTNING_WARNINGS = pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")


class Stock(LightningModule):
    """As in Lightning's documentation; knows nothing of lfl."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))
        self.hooks: list[str] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        x, y = batch
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.log("train_loss", loss, prog_bar=True, on_step=False, on_epoch=True)
        self.log_dict({"train_acc": (logits.argmax(1) == y).float().mean(), "constant": 2.0}, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("val_acc", (self.layers(x).argmax(1) == y).float().mean())

    def on_train_epoch_start(self) -> None:
        self.hooks.append(f"epoch {self.current_epoch}")

    def on_validation_epoch_end(self) -> None:
        self.hooks.append("validated")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def one_client_data() -> FederatedDataModule:
    """One client with one batch: nothing is left to the order of examples."""
    source = DatasetSource(images(), images(40, seed=1), num_classes=4)
    return FederatedDataModule(source=source, partitioner=IIDPartitioner(), num_clients=1, batch_size=120)


def stock() -> Stock:
    torch.manual_seed(0)
    return Stock()


@LIGHTNING_WARNINGS
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_stock_module_gives_the_numbers_of_lightnings_trainer(engine: str, tmp_path: Path) -> None:
    """One client, all its data in a batch, 5 epochs: the same 5 steps; batches are summed in another order."""
    central = stock()
    trainer = Trainer(max_epochs=5, precision="64-true", num_sanity_val_steps=0, **QUIET)
    trainer.fit(central, one_client_data())
    federated = stock()
    run = train(
        [],
        tmp_path,
        federated,
        one_client_data(),
        engine=engine,
        max_rounds=1,
        local_epochs=5,
        participation=FullParticipation(),
        check_val_every_n_rounds=1,
    )
    for name, value in central.state_dict().items():
        torch.testing.assert_close(federated.state_dict()[name], value, rtol=0, atol=1e-12)
    assert run.summary.last("val_acc")[0] == pytest.approx(float(trainer.callback_metrics["val_acc"]), abs=1e-6)
    assert run.summary.last("constant")[0] == 2.0
    assert 0 < run.summary.last("train_acc")[0] <= 1
    assert run.summary.last("train_loss")[0] == pytest.approx(run.summary.last("train/loss")[0], abs=1e-12)
    assert federated.hooks == ["epoch 0", "validated"]
    assert central.hooks[:2] == ["epoch 0", "validated"]


@LIGHTNING_WARNINGS
def test_our_classifier_trains_centrally(tmp_path: Path) -> None:
    data = ragged_data()
    trainer = Trainer(max_epochs=3, **QUIET)
    trainer.fit(mlp(), data)
    assert float(trainer.callback_metrics["val_acc"]) > 0.8


def test_a_module_that_keeps_metric_objects(tmp_path: Path) -> None:
    """Their state is changed in place: the sequential engine computes it over the round, and over validation."""

    class WithMetrics(Stock):
        def __init__(self) -> None:
            super().__init__()
            self.accuracy = MulticlassAccuracy(4, average="micro")
            self.val_accuracy = MulticlassAccuracy(4, average="micro")

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            logits = self.layers(x)
            self.accuracy(logits, y)
            self.log("metric_acc", self.accuracy, on_epoch=True)
            self.log("mean_acc", (logits.argmax(1) == y).double().mean())
            return nn.functional.cross_entropy(logits, y)

        def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
            self.val_accuracy(self.layers(batch[0]), batch[1])
            self.log("val_metric", self.val_accuracy)

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="sequential engine"):
        run = train([], tmp_path, WithMetrics(), engine="auto", max_rounds=2, check_val_every_n_rounds=1)
    assert run.summary.last("metric_acc")[0] == pytest.approx(run.summary.last("mean_acc")[0], abs=1e-6)
    assert 0 < run.summary.last("val_metric")[0] <= 1


def test_validation_over_several_dataloaders_and_by_batches(tmp_path: Path) -> None:
    class Two(FederatedDataModule):
        def val_dataloader(self) -> Any:
            loader = super().val_dataloader()
            return [loader, loader]

    class TwoLoaders(Stock):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val_index", float(dataloader_idx))
            self.log("val_size", float(len(batch[1])))

    source = DatasetSource(images(), images(40, seed=1), num_classes=4)
    data = Two(source=source, num_clients=4, eval_batch_size=30)
    run = train([], tmp_path, TwoLoaders(), data, max_rounds=1, participation=FullParticipation())
    assert run.summary.last("val_index/dataloader_idx_0")[0] == 0
    assert run.summary.last("val_index/dataloader_idx_1")[0] == 1
    # Batches of 30 and 10 examples, averaged over examples.
    assert run.summary.last("val_size/dataloader_idx_0")[0] == (30 * 30 + 10 * 10) / 40


def test_the_trained_model_is_in_the_module_and_in_the_checkpoint(tmp_path: Path) -> None:
    from lfl.checkpointing import Checkpointing

    module = stock()
    run = train([], tmp_path, module, checkpoint=Checkpointing(), precision="32-true")
    trained = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.equal(trained, run.server.vector)
    saved = torch.load(Path(run.log_dir) / "checkpoints" / "last.ckpt", weights_only=True)
    fresh = stock()
    fresh.load_state_dict(saved["state_dict"])
    assert torch.equal(torch.cat([p.detach().flatten() for p in fresh.parameters()]), trained)


def test_validate_test_and_predict(tmp_path: Path) -> None:
    module, data = mlp(), ragged_data()
    trainer = train([], tmp_path, module, data, max_rounds=5, precision="32-true")
    options = {"accelerator": "cpu", "enable_progress_bar": False, "default_root_dir": str(tmp_path)}
    other = FederatedTrainer(**options)
    validated = other.validate(module, data)
    assert validated["val_acc"] == pytest.approx(trainer.summary.last("val_acc")[0], abs=1e-6)
    assert FederatedTrainer(**options).test(module, data)["test_acc"] == pytest.approx(validated["val_acc"])
    outputs = FederatedTrainer(**options).predict(module, data)
    assert torch.cat(outputs).shape == (40, 4)
    assert torch.equal(torch.cat(torch.load(next(tmp_path.glob("run_*/predictions.pt")))), torch.cat(outputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "automatic_optimization", False), "manual optimization"),
        (lambda m: setattr(m, "configure_optimizers", lambda: None), "returned None"),
        (
            lambda m: setattr(m, "configure_optimizers", lambda: [torch.optim.SGD(m.parameters(), 0.1)] * 2),
            "2 optimizers",
        ),
        (lambda m: setattr(m, "training_step", lambda batch, batch_idx: None), "must return the loss"),
    ],
)
def test_what_cannot_be_trained_is_said(change: Any, message: str, tmp_path: Path) -> None:
    module = stock()
    change(module)
    with pytest.raises((ValueError, TypeError), match=message):
        train([], tmp_path, module)


def test_batch_hooks_that_are_not_called_are_named(tmp_path: Path) -> None:
    class Hooked(Stock):
        def on_train_batch_end(self, *args: Any) -> None:
            raise AssertionError

    with pytest.warns(UserWarning, match="overrides on_train_batch_end, which lfl does not call"):
        train([], tmp_path, Hooked(), max_rounds=1)


def test_frozen_parts_stay_in_evaluation_mode(tmp_path: Path) -> None:
    """As under lightning.Trainer: evaluation gives every part its own mode back."""
    module = mlp(dropout=0.5)
    dropout = next(part for part in module.modules() if isinstance(part, nn.Dropout))
    dropout.eval()
    train([], tmp_path, module, max_rounds=2, check_val_every_n_rounds=1, engine="vectorized")
    assert not dropout.training
    assert module.training


def test_a_gradient_penalty_can_be_trained(tmp_path: Path) -> None:
    class Penalised(Stock):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x = batch[0].requires_grad_()
            logits = self.layers(x)
            (gradient,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
            return nn.functional.cross_entropy(logits, batch[1]) + gradient.square().mean()

    torch.manual_seed(0)
    run = train([], tmp_path, Penalised(), max_rounds=1)
    assert run.server.vector.isfinite().all()


def test_hooks_may_log(tmp_path: Path) -> None:
    class Logging(Stock):
        def on_train_start(self) -> None:
            self.log("started", 1.0)

        def on_train_epoch_end(self) -> None:
            self.log("round_end", 7.0)

    torch.manual_seed(0)
    run = train([], tmp_path, Logging(), max_rounds=2)
    assert run.summary.last("round_end") == (7.0, 2)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_loss_that_is_no_scalar_is_named(engine: str, tmp_path: Path) -> None:
    module = mlp()
    module.training_step = lambda batch, batch_idx: module.backbone(batch[0]).sum(dim=1)
    with pytest.raises((TypeError, ValueError), match="must return a scalar loss, got a tensor of shape"):
        train([], tmp_path, module, engine=engine)


def test_every_fit_is_a_run_of_its_own(tmp_path: Path) -> None:
    """A second fit starts from the module as it is; validation afterwards does not write into the run's file."""
    module, data = mlp(), ragged_data()
    trainer = train([], tmp_path, module, data, max_rounds=2)
    first = Path(trainer.log_dir) / "metrics.csv"
    written = first.read_bytes()
    trainer.validate(module, data)
    assert first.read_bytes() == written
    trainer.fit(module, data)
    assert first.read_bytes() == written
    assert trainer.current_round == 2
    assert len(trainer.loggers) == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"engine": "vectorised"}, "`engine=vectorised` must be one of auto, sequential, vectorized"),
        ({"buffers": "avg"}, "`buffers=avg` must be one of"),
        ({"on_nonfinite": "ignore"}, "`on_nonfinite=ignore` must be one of stop, skip"),
        ({"gradient_clip_val": -1.0}, "`gradient_clip_val=-1.0` must be greater than 0"),
        ({"local_steps": 0}, "`local_steps=0` must be a whole number of at least 1"),
        ({"local_epochs": 1.5}, "`local_epochs=1.5` must be a whole number"),
        ({"max_rounds": -1}, "`max_rounds=-1` must be at least 0"),
    ],
)
def test_values_that_cannot_be_from_python(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FederatedTrainer(**option)


def test_callbacks_of_another_trainer_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`callbacks` takes FederatedCallbacks"):
        FederatedTrainer(callbacks=[ModelCheckpoint()])
