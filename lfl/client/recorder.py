"""Records what a training or evaluation step logs."""

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
    """A value that the clients of a cohort logged, summed over each client's examples.

    Attributes:
        total: sum of each client [C], float64.
        count: number of examples of each client [C], float64 (on the CPU).
    """

    total: Tensor
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.count)

    def sum(self) -> Tensor:
        """The sum over the examples of all clients, and the number of these examples [2]."""
        return torch.stack([self.total.sum(), self.total.new_tensor(self.count.sum())])

    def keep(self, mask: Tensor) -> LoggedSum:
        """The clients where ``mask`` [C] (bool, CPU) is true."""
        return LoggedSum(self.total[mask.to(self.total.device)], self.count[mask.numpy()])


class Recorder:
    """Takes the place of ``self.log``: keeps what a step logs as tensors, without waiting for the GPU.

    Attributes:
        values: scalars logged since ``start``, by name.
        metrics: Metric objects logged since they were cleared, by name.
        batch_sizes: the ``batch_size`` that was given with a value, by name.
        directions: whether metrics should be large (1) or small (-1), by name, where something tells: the Metric object
            that was logged under it, or a callback's setting. Kept for the run.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.metrics: dict[str, Metric] = {}
        self.batch_sizes: dict[str, int] = {}
        self.directions: dict[str, int] = {}

    def start(self) -> None:
        """Forget the values of the last step."""
        self.values = {}
        self.batch_sizes = {}

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Take the place of ``LightningModule.log``. With ``on_step`` too, values are averaged over a round's examples.

        Raises:
            ValueError: ``reduce_fx`` is not the mean.
            TypeError: the value is not a scalar.
        """
        reduce_fx = options.get("reduce_fx", "mean")
        if reduce_fx not in ("mean", torch.mean):
            raise ValueError(
                f"`self.log({name!r}, reduce_fx={reduce_fx!r})`: values are averaged over a round; log a mean."
            )
        if isinstance(value, Metric):
            self.metrics[name] = value
            if value.higher_is_better is not None:
                self.directions.setdefault(name, 1 if value.higher_is_better else -1)
            return
        tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
        self.values[name] = as_scalar(tensor, f"`self.log({name!r}, ...)` takes a scalar")
        if options.get("batch_size"):
            self.batch_sizes[name] = options["batch_size"]

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Take the place of ``LightningModule.log_dict``."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)


def as_scalar(value: Tensor, rule: str) -> Tensor:
    """Reshape a tensor of one element to one without dimensions.

    Raises:
        TypeError: it does not have exactly one element; the message begins with ``rule``.
    """
    if value.numel() != 1:
        raise TypeError(f"{rule}, got a tensor of shape {tuple(value.shape)}.")
    return value.reshape(())
