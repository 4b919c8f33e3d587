from pathlib import Path

import yaml
from lightning.pytorch import loggers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from worlds import ragged_data, train

from lfl.loggers import RunTensorBoardLogger
from lfl.models import MLP, Classifier


def test_lightnings_logger_takes_rounds_as_steps(tmp_path):
    """Users name Lightning's logger; with an empty name and version it writes into the run's folder itself."""
    logger = loggers.TensorBoardLogger(tmp_path, name="", version="")
    logger.log_hyperparams({"lr": 0.5})
    for number in (1, 2, 3):
        logger.log_metrics({"train/loss": 0.5**number, "comm/up_bytes": 8 * number}, step=number)
    logger.log_metrics({"val_acc": 0.25}, step=2)
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert [(event.step, event.value) for event in events.Scalars("comm/up_bytes")] == [(1, 8.0), (2, 16.0), (3, 24.0)]
    assert [(event.step, event.value) for event in events.Scalars("val_acc")] == [(2, 0.25)]


class Net(Classifier):
    def __init__(self, hidden: int, lr: float = 0.25) -> None:
        super().__init__(MLP(in_features=64, hidden=[hidden], num_classes=4), lr=lr)
        self.save_hyperparameters()


def test_a_run_logs_its_hyper_parameters_and_settings_into_its_own_folder(tmp_path: Path) -> None:
    logger = RunTensorBoardLogger()
    first = train([], tmp_path, Net(8), ragged_data(), logger=logger, max_rounds=2)
    second = train([], tmp_path, Net(6), ragged_data(), logger=logger, max_rounds=1)
    for trainer, hidden, rounds in ((first, 8, [1, 2]), (second, 6, [1])):
        folder = Path(trainer.log_dir) / "tensorboard"
        saved = yaml.safe_load((folder / "hparams.yaml").read_text())
        assert (saved["hidden"], saved["lr"]) == (hidden, 0.25)
        assert (saved["trainer"]["max_rounds"], saved["data"]["num_clients"]) == (len(rounds), 8)
        scalars = EventAccumulator(str(folder)).Reload().Scalars("train/loss")
        assert [event.step for event in scalars] == rounds
    elsewhere = RunTensorBoardLogger(tmp_path / "board", name="", version="mine")
    train([], tmp_path, Net(6), ragged_data(), logger=elsewhere, max_rounds=1)
    assert (tmp_path / "board" / "mine" / "hparams.yaml").exists()
