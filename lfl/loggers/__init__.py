"""Loggers of a run's metrics; any logger of ``lightning.pytorch.loggers`` serves as well."""

from lfl.loggers.csv import CSVLogger, read_rows
from lfl.loggers.tensorboard import RunTensorBoardLogger
from lfl.loggers.wandb import WandbLogger

__all__ = ["CSVLogger", "RunTensorBoardLogger", "WandbLogger", "read_rows"]
