"""What is seen of a training step."""

import datetime
import random
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanMetric

from lfl.client.model import ClientModel
from lfl.client.probe import NoGradientError, probe
from lfl.client.traits import StepTraits


class Base(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(3, 1), nn.Linear(3, 1)
        self.scale, self.unread, self.outputs = 2.0, 3.0, []
        self.drop = nn.Dropout(0.5)
        self.metric = MeanMetric()
        self.rng = np.random.default_rng(0)
        self.register_buffer("count", torch.zeros(()))

    def loss(self, x: Tensor) -> Tensor:
        return (self.layer(x) + self.other(x)).square().mean()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.loss(batch)


def seen_of(step: Any, x: Tensor | None = None) -> tuple[Base, StepTraits]:
    module = type("Net", (Base,), {"training_step": step})()
    model = ClientModel(module)
    batches = [torch.ones(2, 3) if x is None else x]
    return module, probe(model, batches, [torch.tensor(1)])


def test_a_plain_step_does_nothing_besides() -> None:
    _, traits = seen_of(Base.training_step)
    assert replace(traits, read_attributes=()) == StepTraits()


def test_it_leaves_the_module_and_the_generators_alone() -> None:
    def step(self: Base, batch: Tensor) -> Tensor:
        self.outputs.append(1)
        self.count += 1
        self.metric.update(1.0)
        self.layer.weight.data.mul_(2)
        return self.loss(batch) * random.random() * np.random.rand() * torch.rand(()) * self.rng.random()

    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    module, traits = seen_of(step)
    # `Net()` has drawn its initial weights in between, so that torch's own generator is compared below.
    assert (np.random.rand(), random.random()) == expected[1:]
    assert module.outputs == []
    assert float(module.count) == 0
    assert module.rng.random() == np.random.default_rng(0).random()
    assert traits.changed_buffers == ("count",)
    assert traits.changed_parameters == ("layer.weight",)
    assert "outputs" in traits.changed_attributes
    assert set(traits.host_draws) == {"numpy's global generator", "Python's `random`", "its generator `rng`"}
    assert traits.random_operations


@pytest.mark.parametrize(
    ("step", "read"),
    [
        (lambda self, batch, batch_idx: self.loss(batch) * batch_idx, "`batch_idx`"),
        (lambda self, *args: self.loss(args[0]), "`batch_idx`"),
        (lambda self, batch: self.loss(batch) * (1 + self.current_epoch), "`current_epoch`"),
        (lambda self, batch: self.loss(batch) * (1 + self.global_step), "`global_step`"),
        (lambda self, batch: self.loss(batch) * (1 + time.time()), "the clock"),
        (lambda self, batch: self.loss(batch) * datetime.datetime.now().year, "the clock"),
    ],
)
def test_what_changes_from_step_to_step_is_read(step: Any, read: str) -> None:
    class Trainer:
        current_epoch, global_step, max_epochs, barebones = 1, 2, 3, False

    module = type("Net", (Base,), {"training_step": step})()
    trainer = Trainer()
    vars(module)["_trainer"] = trainer
    assert probe(ClientModel(module), [torch.ones(2, 3)], [torch.tensor(1)]).reads == (read,)


def test_what_stays_the_same_may_be_read() -> None:
    class Trainer:
        max_epochs = 3

    def step(self: Base, batch: Tensor, batch_idx: int) -> Tensor:
        del batch_idx
        return self.loss(batch) * self.scale * self.trainer.max_epochs

    module = type("Net", (Base,), {"training_step": step})()
    trainer = Trainer()
    vars(module)["_trainer"] = trainer
    traits = probe(ClientModel(module), [torch.ones(2, 3)], [torch.tensor(1)])
    assert traits.reads == ()
    assert "scale" in traits.read_attributes
    assert "unread" not in traits.read_attributes


def test_missing_gradients_are_named() -> None:
    _, traits = seen_of(lambda self, batch: self.layer(batch).sum())
    assert traits.without_gradient == ("other.weight", "other.bias")


@pytest.mark.parametrize("step", [lambda self, b: self.loss(b).detach(), lambda self, b: (b * self.count).sum()])
def test_a_loss_without_any_gradient_is_refused(step: Any) -> None:
    with pytest.raises(NoGradientError, match="No parameter of Net gets a gradient"):
        seen_of(step)


def test_what_backward_alone_reaches_is_seen() -> None:
    def step(self: Base, batch: Tensor) -> Tensor:
        return checkpoint(self.loss, batch.clone().requires_grad_(), use_reentrant=True)

    _, traits = seen_of(step)
    assert replace(traits, read_attributes=()) == StepTraits(needs_backward=True)


def test_two_steps_are_seen_together() -> None:
    one, other = (
        StepTraits(reads=("a",), without_gradient=("w", "v")),
        StepTraits(reads=("b",), without_gradient=("v",)),
    )
    assert one | other == StepTraits(reads=("a", "b"), without_gradient=("v",))


def test_what_is_written_to_the_class_is_seen_and_dropped() -> None:
    def step(self: Base, batch: Tensor, batch_idx: int) -> Tensor:
        type(self).steps = getattr(type(self), "steps", 0) + 1
        return self.loss(batch)

    module, traits = seen_of(step)
    assert traits.changed_outside == ("Net.steps",)
    assert not hasattr(type(module), "steps")
