from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_lightnings_logger_takes_rounds_as_steps(tmp_path):
    """Users name Lightning's logger; with an empty name and version it writes into the run's folder itself."""
    logger = TensorBoardLogger(tmp_path, name="", version="")
    logger.log_hyperparams({"lr": 0.5})
    for number in (1, 2, 3):
        logger.log_metrics({"train/loss": 0.5**number, "comm/up_bytes": 8 * number}, step=number)
    logger.log_metrics({"val_acc": 0.25}, step=2)
    logger.finalize("success")
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert [(event.step, event.value) for event in events.Scalars("comm/up_bytes")] == [(1, 8.0), (2, 16.0), (3, 24.0)]
    assert [(event.step, event.value) for event in events.Scalars("val_acc")] == [(2, 0.25)]
