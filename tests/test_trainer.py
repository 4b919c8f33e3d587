"""A module written for lightning.Trainer trains here unchanged, and one written here trains there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from worlds import images, mlp, ragged_data, stock, train

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


def one_client_data() -> FederatedDataModule:
    """One client with one batch: nothing is left to the order of examples."""
    source = DatasetSource(images(), images(40, seed=1), num_classes=4)
    return FederatedDataModule(source=source, partitioner=IIDPartitioner(), num_clients=1, batch_size=120)


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


def test_validate_test_and_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, data = mlp(), ragged_data()
    trainer = train([], tmp_path, module, data, max_rounds=5, precision="32-true")
    options = {"accelerator": "cpu", "enable_progress_bar": False, "default_root_dir": str(tmp_path)}
    other = FederatedTrainer(**options)
    validated = other.validate(module, data)
    assert validated["val_acc"] == pytest.approx(trainer.summary.last("val_acc")[0], abs=1e-6)
    capsys.readouterr()
    tested = FederatedTrainer(**options).test(module, data)
    assert tested["test_acc"] == pytest.approx(validated["val_acc"])
    printed = capsys.readouterr().out  # the table, as Lightning prints it, without a progress bar
    for name, value in tested.items():
        assert re.search(rf"{name} +{re.escape(f'{value:.6g}')}", printed)
    FederatedTrainer(**options).test(module, data, verbose=False)
    assert capsys.readouterr().out == ""
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


def test_dataloaders_are_no_data_of_clients(tmp_path: Path) -> None:
    trainer: Any = FederatedTrainer(default_root_dir=str(tmp_path), enable_progress_bar=False)
    loader = torch.utils.data.DataLoader(images())
    with pytest.raises(ValueError, match="DataLoader does not know clients: give a `FederatedDataModule`"):
        trainer.fit(stock(), loader, loader)


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


def test_several_processes_in_a_notebook_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning.fabric.connector._IS_INTERACTIVE", True)
    with pytest.raises(ValueError, match="`devices=2` in a notebook: processes start with the whole script"):
        FederatedTrainer(accelerator="cpu", devices=2)
    FederatedTrainer(accelerator="cpu", devices=1, enable_progress_bar=False)


def test_spawned_processes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`strategy=ddp_spawn` starts processes from a function; use `ddp`"):
        train([], tmp_path, strategy="ddp_spawn", devices=2)
