"""What a training or evaluation step logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric


@dataclass
class LoggedSum:
    """A value that C clients logged, summed over their examples.

    Attributes:
        total: sums [C], float64.
        count: numbers of examples [C], float64 (on the CPU).
    """

    total: Tensor
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.count)

    def sum(self) -> Tensor:
        """The sum over all clients' examples, and how many there are [2]."""
        return torch.stack([self.total.sum(), self.total.new_tensor(self.count.sum())])

    def keep(self, mask: Tensor) -> LoggedSum:
        """The clients where ``mask`` [C] (bool, CPU) is true."""
        return LoggedSum(self.total[mask.to(self.total.device)], self.count[mask.numpy()])


class Recorder:
    """Stands in for ``self.log``: keeps what a step logs as tensors, without synchronizing anything.

    Attributes:
        values: scalars logged since ``start``, by name.
        metrics: Metric objects logged since they were cleared, by name.
        batch_sizes: the ``batch_size`` given with a value, where one was, by name.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.metrics: dict[str, Metric] = {}
        self.batch_sizes: dict[str, int] = {}

    def start(self) -> None:
        """Forget the values of the last step."""
        self.values, self.batch_sizes = {}, {}

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Stand in for ``LightningModule.log``; ``on_step`` and ``on_epoch`` both mean: over a round's examples.

        Raises:
            ValueError: ``reduce_fx`` is not the mean.
            TypeError: the value is no scalar.
        """
        reduce_fx = options.get("reduce_fx", "mean")
        if reduce_fx not in ("mean", torch.mean):
            raise ValueError(
                f"`self.log({name!r}, reduce_fx={reduce_fx!r})`: values are averaged over a round; log a mean."
            )
        if isinstance(value, Metric):
            self.metrics[name] = value
            return
        tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
        self.values[name] = as_scalar(tensor, f"`self.log({name!r}, ...)` takes a scalar")
        if options.get("batch_size"):
            self.batch_sizes[name] = options["batch_size"]

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Stand in for ``LightningModule.log_dict``."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)


def as_scalar(value: Tensor, rule: str) -> Tensor:
    """``value`` without dimensions.

    Raises:
        TypeError: it has several elements; the message begins with ``rule``.
    """
    if value.numel() != 1:
        raise TypeError(f"{rule}, got a tensor of shape {tuple(value.shape)}.")
    return value.reshape(())
