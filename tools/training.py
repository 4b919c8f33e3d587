"""Short training runs from Python, for measurements."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule

from lfl.data import FederatedData
from lfl.trainer import FederatedTrainer


@contextmanager
def fitted(model: LightningModule, data: FederatedData, **settings: Any) -> Iterator[FederatedTrainer]:
    """Train, and give the trainer to the block; the run's folder is removed at its end.

    Args:
        model: what is trained.
        data: what it is trained on.
        settings: of the trainer. By default it runs on the CPU, writes no checkpoints and shows no progress.
    """
    quiet = {"accelerator": "cpu", "checkpoint": None, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory(prefix="lfl_") as folder:
        trainer = FederatedTrainer(default_root_dir=folder, **{**quiet, **settings})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(model, data)
        yield trainer
