"""What a LightningModule, and Lightning's own callbacks, may ask of their trainer."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch.loggers import Logger


class LightningFacade:
    """The part of ``lightning.Trainer``'s attributes that has a meaning here. To a module, a round is an epoch."""

    fabric: Fabric
    loggers: list[Logger]
    current_round: int
    max_rounds: int

    @property
    def device(self) -> torch.device:
        """This process's device."""
        return self.fabric.device

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes files."""
        return bool(self.fabric.is_global_zero)

    @property
    def global_rank(self) -> int:
        """Number of this process."""
        return self.fabric.global_rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.fabric.world_size

    @property
    def strategy(self) -> Any:
        """Fabric's strategy."""
        return self.fabric.strategy

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self.loggers[0] if self.loggers else None

    @property
    def current_epoch(self) -> int:
        """Rounds completed: to a LightningModule a round is an epoch."""
        return self.current_round

    @property
    def global_step(self) -> int:
        """Rounds completed: the only axis there is."""
        return self.current_round

    @property
    def max_epochs(self) -> int:
        """``max_rounds``, under the name that a LightningModule knows."""
        return self.max_rounds

    @property
    def progress_bar_callback(self) -> None:
        """For ``LightningModule.print``."""
        return
