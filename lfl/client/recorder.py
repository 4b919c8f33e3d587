"""What a training or evaluation step logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class Recorder:
    """Stands in for ``self.log``: keeps what a step logs as tensors, without synchronising anything."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.metrics: dict[str, Metric] = {}
        self.batch_sizes: dict[str, int] = {}

    def start(self) -> None:
        """Forget the last step."""
        self.values, self.batch_sizes = {}, {}

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """``LightningModule.log``: the mean over a round's examples; ``on_step`` and ``on_epoch`` are the same here."""
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
        """``LightningModule.log_dict``."""
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)


def as_scalar(value: Tensor, rule: str) -> Tensor:
    """``value`` without dimensions; raises TypeError, which begins with ``rule``, if it has several elements."""
    if value.numel() != 1:
        raise TypeError(f"{rule}, got a tensor of shape {tuple(value.shape)}.")
    return value.reshape(())
