"""A schedule of learning rates that a theorem asks for."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override


class InverseTime(LRScheduler):
    """``lr c / (c + t - 1)`` in round t: constant at first, then as 1/t.

    Args:
        optimizer: its rates.
        offset: c, in rounds.
        last_epoch: rounds that are over; -1 for none and a new start.
    """

    def __init__(self, optimizer: Optimizer, offset: float, last_epoch: int = -1) -> None:
        self.offset = offset
        super().__init__(optimizer, last_epoch)

    @override
    def get_lr(self) -> list[float | Tensor]:
        return [lr * self.offset / (self.offset + self.last_epoch) for lr in self.base_lrs]
