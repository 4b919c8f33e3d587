"""What has changed in a module since a moment, and what can be put back."""

from typing import Any

import torch
from torch import nn

from lfl.client.snapshot import Snapshot


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.teacher = nn.Linear(2, 2).requires_grad_(False)
        self.count, self.nan, self.mean = 0, float("nan"), torch.zeros(2)
        self.losses: list[Any] = [1.0]
        self.state = {"steps": 0}


def test_nothing_has_changed() -> None:
    module = Holding()
    snapshot = Snapshot(module)
    module.layer.weight.data.add_(1)  # trained
    assert snapshot.changed() == []
    assert snapshot.restore() == []


def test_attributes_are_put_back() -> None:
    module = Holding()
    snapshot, mean, losses = Snapshot(module), module.mean, module.losses
    module.count += 1
    module.mean = module.mean + 1
    module.losses.append(2.0)
    module.state["steps"] += 1
    module.layer.new = 3
    assert sorted(snapshot.changed()) == ["count", "layer.new", "losses", "mean", "state"]
    assert snapshot.restore() == []
    assert (module.count, module.losses, module.state, hasattr(module.layer, "new")) == (0, [1.0], {"steps": 0}, False)
    assert module.mean is mean
    assert module.losses is losses


def test_what_was_written_into_is_named() -> None:
    module = Holding()
    snapshot = Snapshot(module)
    module.mean.add_(1)
    module.teacher.weight.mul_(0.5)
    assert snapshot.restore() == ["teacher.weight", "mean"]
