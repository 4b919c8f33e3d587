"""Pictures in a run's folder, and in loggers that take some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "pictures"  # in the run's folder


def save_figure(figure: Figure, folder: Path, loggers: Sequence[Logger], name: str, number: int) -> Path:
    """Write ``NAME_ROUND.png``, and log it under the name; returns the file.

    Args:
        figure: what was drawn.
        folder: ``FOLDER`` of the run's.
        loggers: TensorBoard's and W&B's are given the picture, too.
        name: of the picture.
        number: the round.
    """
    path = folder / f"{name}_{number:06d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.log_image(key=f"{FOLDER}/{name}", images=[str(path)], step=number)
        elif isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(f"{FOLDER}/{name}", figure, number)
    return path
