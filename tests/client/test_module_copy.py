"""A copy of a module shares nothing that a step can change."""

import threading
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.client.module_copy import copy_of


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
        self.tied = self.first
        self.kept: list[Tensor] = []
        self.lock = threading.Lock()  # cannot be copied
        self.features: dict[str, Tensor] = {}
        self.first.register_forward_hook(lambda _layer, _inputs, output: self.keep(output))

    def keep(self, output: Tensor) -> None:
        self.features["first"] = output

    def training_step(self, batch: Any) -> Tensor:
        self.kept.append(self.first(batch).sum())
        return self.kept[-1]


def test_a_step_of_the_copy_leaves_no_trace() -> None:
    module = Net()
    twin = copy_of(module)
    twin.training_step(torch.ones(1, 2))
    twin.first.weight.data.zero_()
    assert module.kept == []
    assert module.features == {}  # the hook closes over the module; the copy's, over the copy
    assert "first" in twin.features
    assert bool(module.first.weight.any())
    assert twin.tied is twin.first
    assert twin.lock is module.lock


def test_frozen_numbers_are_shared_until_they_are_written_to() -> None:
    module = Net()
    before = module.second.weight.clone()
    for write in (
        lambda weight: weight.data.mul_(2),
        lambda weight: weight.numpy().fill(3),
        lambda weight: weight.view(-1)[1:].zero_(),
        lambda weight: nn.init.ones_(weight),
    ):
        twin = copy_of(module)
        assert torch._C._is_cow_tensor(twin.second.weight)
        twin.second(torch.ones(1, 2))
        assert torch._C._is_cow_tensor(twin.second.weight)
        assert torch.equal(twin.second.weight, before)
        write(twin.second.weight)
        assert torch.equal(module.second.weight, before)
        assert not torch.equal(twin.second.weight, before)
    twin = copy_of(module)
    module.second.weight.data.add_(1)
    assert torch.equal(twin.second.weight, before)
    twin.second.requires_grad_(True)
    assert not module.second.weight.requires_grad


def test_frozen_numbers_in_foreign_memory_are_copied() -> None:
    module = Net()
    module.second.weight.data = torch.from_numpy(np.ones((2, 2), np.float32))
    twin = copy_of(module)
    twin.second.weight.data.mul_(2)
    assert module.second.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert twin.second.weight.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_it_has_the_trainer_and_a_step_that_was_put_there() -> None:
    class Trainer:
        current_epoch = 3

    module = Net()
    trainer = Trainer()
    vars(module)["_trainer"] = trainer
    plain = module.training_step
    module.training_step = lambda batch, plain=plain: 2 * plain(batch) + 0 * module.first.weight.sum()
    twin = copy_of(module)
    assert twin.current_epoch == 3
    loss = twin.training_step(torch.ones(1, 2))
    (gradient,) = torch.autograd.grad(loss, twin.first.bias)
    assert gradient.tolist() == [2.0, 2.0]
    assert module.kept == []
