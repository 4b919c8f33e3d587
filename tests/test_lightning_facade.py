"""A stock LightningModule asks its trainer for what it asks Lightning's; each answer has its meaning in rounds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.nn import functional as F
from worlds import ragged_data, train

from lfl.callbacks import Scaffold
from lfl.checkpointing import Checkpointing
from lfl.client.work import LocalPhase
from lfl.lightning_facade import LightningFacade
from lfl.loggers import CSVLogger
from lfl.loggers.csv import read_rows
from lfl.participation import FullParticipation
from lfl.trainer import FederatedTrainer


class Stock(LightningModule):
    """As people write it for Lightning: it asks ``self.trainer`` in its hooks, and is told."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        self.answers: dict[str, Any] = {}

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))
        self.answers["validating"] = self.trainer.validating, self.trainer.training, self.trainer.state.stage.value

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("test_loss", F.cross_entropy(self.net(batch[0]), batch[1]))
        self.answers["testing"] = self.trainer.testing, self.trainer.evaluating, self.trainer.state.fn.value

    def on_train_epoch_start(self) -> None:
        trainer, optimizer = self.trainer, self.optimizers()
        self.answers.update(
            epoch=trainer.current_epoch,
            steps=trainer.estimated_stepping_batches,
            batches=trainer.num_training_batches,
            val_batches=trainer.num_val_batches,
            classes=trainer.datamodule.num_classes,
            max_epochs=trainer.max_epochs,
            max_steps=trainer.max_steps,
            stage=trainer.state.stage.value,
            sanity=trainer.sanity_checking,
            devices=(trainer.num_devices, trainer.num_nodes, trainer.world_size, trainer.local_rank),
            accumulate=trainer.accumulate_grad_batches,
            module=trainer.lightning_module is self,
            precision=trainer.precision,
            optimizer=type(optimizer).__name__,
            lr=optimizer.param_groups[0]["lr"],
            schedulers=self.lr_schedulers(),
            logger=type(self.logger).__name__,
            loss=float(trainer.callback_metrics.get("val_loss", -1.0)),
            first=[len(batch[0]) for batch in trainer.val_dataloaders],
        )

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def stock(kind: type[Stock] = Stock, **options: Any) -> Stock:
    torch.manual_seed(0)
    return kind(**options)


EVERY = {"check_val_every_n_rounds": 1}


def test_what_a_stock_module_asks(tmp_path: Path) -> None:
    module, data = stock(), ragged_data()
    trainer = train([], tmp_path, module, data, max_rounds=3, local_epochs=2, **EVERY)
    largest = -(-int(data.client_sizes.max()) // 5)
    rows = dict(read_rows(trainer.log_dir + "/metrics.csv"))
    assert module.answers == {
        "epoch": 2,
        "steps": 2 * largest,
        "batches": largest,
        "val_batches": [1],
        "classes": 4,
        "max_epochs": 3,
        "max_steps": -1,
        "stage": "train",
        "sanity": False,
        "devices": (1, 1, 1, 0),
        "accumulate": 1,
        "module": True,
        "precision": "64-true",
        "optimizer": "SGD",
        "lr": 0.1,
        "schedulers": None,
        "logger": "CSVLogger",
        "loss": rows[2]["val_loss"],
        "first": [40],
        "validating": (True, False, "validate"),
    }


def test_the_last_metrics_are_returned(tmp_path: Path) -> None:
    trainer = FederatedTrainer(
        max_rounds=2, accelerator="cpu", default_root_dir=str(tmp_path), enable_progress_bar=False
    )
    metrics = trainer.fit(stock(), ragged_data())
    assert metrics == {name: float(value) for name, value in trainer.callback_metrics.items()}
    rows = {**dict(read_rows(trainer.log_dir + "/metrics.csv")), **{}}
    assert {name: metrics[name] for name in rows[2]} == rows[2]
    assert trainer.logged_metrics.keys() == trainer.progress_bar_metrics.keys() == metrics.keys()


def test_evaluation_after_a_fit_needs_no_arguments(tmp_path: Path) -> None:
    module = stock()
    trainer = train([], tmp_path, module, max_rounds=2, **EVERY)
    before = dict(read_rows(trainer.log_dir + "/metrics.csv"))[2]["val_loss"]
    assert trainer.validate()["val_loss"] == pytest.approx(before, rel=1e-12)
    assert trainer.test().keys() == {"test_loss"}
    assert module.answers["testing"] == (True, True, "test")
    fresh = FederatedTrainer(accelerator="cpu", enable_progress_bar=False, default_root_dir=str(tmp_path))
    with pytest.raises(ValueError, match="`test` needs a `model`: there was no call before"):
        fresh.test()


def test_the_server_after_an_evaluation(tmp_path: Path) -> None:
    trained = train([], tmp_path, stock(), checkpoint=Checkpointing())
    fresh = FederatedTrainer(
        accelerator="cpu", enable_progress_bar=False, default_root_dir=str(tmp_path), precision="64-true"
    )
    fresh.validate(stock(), ragged_data(), ckpt_path="last")
    assert torch.equal(fresh.server.vector, trained.server.vector)
    assert fresh.ckpt_path == str(Path(trained.log_dir) / "checkpoints" / "last.ckpt")


def test_one_cycle_by_lightnings_documentation(tmp_path: Path) -> None:
    class OneCycle(Stock):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.0)
            steps = self.trainer.estimated_stepping_batches
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps, cycle_momentum=False)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    constant = train([], tmp_path, stock(), local_epochs=2)
    cycled = train([], tmp_path, stock(OneCycle), local_epochs=2)
    assert not torch.allclose(cycled.server.vector, constant.server.vector)
    by_phase = train([], tmp_path, stock(), local_phases=[LocalPhase(steps=3), LocalPhase(steps=7)])
    assert by_phase.estimated_stepping_batches == 7


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_step_may_log_its_rate(engine: str, tmp_path: Path) -> None:
    class Telling(Stock):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            self.log("rate", self.optimizers().param_groups[0]["lr"])
            self.log("again", self.lr_schedulers().get_last_lr()[0])
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    trainer = train([], tmp_path, stock(Telling), engine=engine, local_epochs=20)
    rows = [row for _, row in read_rows(trainer.log_dir + "/metrics.csv")]
    for name in ("rate", "again", "lr"):
        assert [row[name] for row in rows] == pytest.approx([0.1, 0.05, 0.025], rel=1e-12)
    with pytest.raises(ValueError, match=r"it reads `lr_schedulers\(\)`"):
        train([], tmp_path, stock(Telling), engine=engine, trace_steps=True)


def test_rates_set_by_a_hook_are_the_clients(tmp_path: Path) -> None:
    class Halving(Stock):
        def on_train_epoch_start(self) -> None:
            for group in self.optimizers().param_groups:
                group["lr"] = 0.1 * 0.5**self.current_epoch

    class Step(Stock):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    by_hook, by_scheduler = (train([Scaffold()], tmp_path, stock(kind)) for kind in (Halving, Step))
    assert torch.equal(by_hook.server.vector, by_scheduler.server.vector)
    options = {"checkpoint": Checkpointing()}
    train([Scaffold()], tmp_path / "broken", stock(Halving), max_rounds=2, **options)
    resumed = train([Scaffold()], tmp_path / "broken", stock(Halving), ckpt_path="last", **options)
    assert torch.equal(resumed.server.vector, by_hook.server.vector)


def test_a_fast_run_tries_everything_and_keeps_nothing(tmp_path: Path) -> None:
    module = stock()
    options: dict[str, Any] = {"participation": FullParticipation(), "checkpoint": Checkpointing()}
    trainer = train([], tmp_path, module, max_rounds=50, local_epochs=3, fast_dev_run=2, logger=True, **options)
    assert (trainer.current_round, trainer.max_rounds, trainer.fast_dev_run) == (1, 1, 2)
    assert trainer.estimated_stepping_batches == 2
    assert [type(logger).__name__ for logger in trainer.loggers] == ["DummyLogger"]
    assert [path.name for path in Path(trainer.log_dir).iterdir()] == ["partition.pt"]
    for value in (-1, 2.5, "yes"):
        with pytest.raises(ValueError, match=f"`fast_dev_run={value}` must be a whole number of at least 1"):
            FederatedTrainer(fast_dev_run=value)  # type: ignore[arg-type]


def test_what_asks_for_a_logger_works_in_a_fast_run(tmp_path: Path) -> None:
    class Drawing(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: LightningModule) -> None:
            pl_module.logger.experiment.add_scalar("mine", 1.0, trainer.global_step)
            trainer.save_checkpoint(tmp_path / "saved.ckpt")

    trainer = train([LearningRateMonitor(), Drawing()], tmp_path, fast_dev_run=True)
    assert trainer.current_round == 1
    resumed = train(
        [LearningRateMonitor(), Drawing()], tmp_path, ckpt_path=str(tmp_path / "saved.ckpt"), fast_dev_run=True
    )
    assert torch.equal(resumed.server.vector, trainer.server.vector)


def test_fewer_batches_of_evaluation(tmp_path: Path) -> None:
    module, data = stock(), ragged_data(eval_batch_size=10)
    trainer = train([], tmp_path, module, data, max_rounds=1, limit_val_batches=2, limit_test_batches=0.75, **EVERY)
    assert (trainer.num_val_batches, trainer.num_test_batches, trainer.num_predict_batches) == ([2], [3], [4])
    x, y = (torch.cat(parts) for parts in zip(*list(data.test_dataloader())[:2], strict=True))
    with torch.no_grad():
        expected = F.cross_entropy(module.net(x), y)
    assert trainer.callback_metrics["val_loss"] == pytest.approx(float(expected), rel=1e-12)
    none = train([], tmp_path, stock(), max_rounds=1, limit_val_batches=0, **EVERY)
    assert "val_loss" not in none.callback_metrics
    with pytest.raises(
        ValueError, match=r"`limit_val_batches=0.5` of 1 batch\(es\) is less than one: use a larger share"
    ):
        train([], tmp_path, stock(), limit_val_batches=0.5)
    with pytest.raises(ValueError, match=r"`limit_val_batches=1.5` must be a share from 0.0 to 1.0"):
        FederatedTrainer(limit_val_batches=1.5)


def test_rounds_between_rows(tmp_path: Path) -> None:
    trainer = train([], tmp_path, stock(), max_rounds=7, log_every_n_steps=3, check_val_every_n_rounds=5)
    assert [number for number, _ in read_rows(trainer.log_dir + "/metrics.csv")] == [3, 5, 6, 7]


def test_the_users_logger_comes_first(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path, name="", version="")
    trainer = train([], tmp_path, stock(), max_rounds=1, logger=board)
    assert trainer.logger is board
    assert [type(logger) for logger in trainer.loggers] == [TensorBoardLogger, CSVLogger]


def test_an_error_interrupts(tmp_path: Path) -> None:
    class Failing(Stock):
        def on_train_epoch_end(self) -> None:
            raise OverflowError

    trainer = FederatedTrainer(accelerator="cpu", default_root_dir=str(tmp_path), enable_progress_bar=False)
    assert (trainer.interrupted, trainer.training) == (False, False)
    with pytest.raises(OverflowError):
        trainer.fit(stock(Failing), ragged_data())
    assert trainer.interrupted
    assert not trainer.training


def test_every_attribute_is_documented() -> None:
    public = {name: value for name, value in vars(LightningFacade).items() if not name.startswith("_")}
    assert [name for name, value in public.items() if isinstance(value, property) and not value.__doc__] == []


def test_loading_needs_no_arguments(tmp_path: Path) -> None:
    module = stock(lr=0.25)
    trainer = train([], tmp_path, module, max_rounds=1, precision="32-true", checkpoint=Checkpointing())
    loaded = Stock.load_from_checkpoint(Path(trainer.log_dir) / "checkpoints" / "last.ckpt")
    assert loaded.hparams == {"lr": 0.25}
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in module.state_dict().items())


def test_a_module_may_add_to_checkpoints(tmp_path: Path) -> None:
    class Adding(Stock):
        found = None

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["vocabulary"] = ["a", "b"]

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            Adding.found = checkpoint["vocabulary"], checkpoint["epoch"]

    train([], tmp_path, stock(Adding), max_rounds=1, checkpoint=Checkpointing())
    train([], tmp_path, stock(Adding), max_rounds=2, ckpt_path="last")
    assert Adding.found == (["a", "b"], 1)


def test_before_the_first_call() -> None:
    trainer = FederatedTrainer(accelerator="cpu", enable_progress_bar=False)
    assert (trainer.lightning_module, trainer.datamodule, trainer.val_dataloaders) == (None, None, None)
    assert (trainer.num_training_batches, trainer.estimated_stepping_batches, trainer.num_val_batches) == (0, 0, [])
    assert (trainer.optimizers, trainer.lr_scheduler_configs, trainer.callback_metrics) == ([], [], {})
    assert (trainer.max_epochs, trainer.min_epochs, trainer.min_steps, trainer.current_epoch) == (100, None, None, 0)
