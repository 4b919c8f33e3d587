"""Losses of batches, and of their examples alone."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lfl.client.model import ClientModel

KEY = torch.tensor(7)
CLASSES, FEATURES = 5, 6
Loss = Callable[["Task", Tensor, Tensor], Tensor]


class Task(LightningModule):
    """A network and a loss, which sees the network, the batch and the labels."""

    def __init__(self, loss: Loss, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net or nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.loss = loss
        self.register_buffer("scale", torch.linspace(1, 2, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any) -> Tensor:
        return self.loss(self, *batch)


def labels(count: int, seed: int) -> Tensor:
    """Of all classes, of two, or of one: batches on which weights and counts differ."""
    classes = (CLASSES, 2, 1)[seed % 3]
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def batches(shape: tuple[int, ...], count: int = 7) -> list[tuple[Tensor, Tensor]]:
    """Three batches ``(x, y)``."""
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(count, *shape, generator=draw).double(), labels(count, seed)) for seed in range(3)]


def model_of(loss: Loss, net: nn.Module | None = None) -> ClientModel:
    torch.manual_seed(1)
    return ClientModel(Task(loss, net).double())


def results(model: ClientModel, batch: Any) -> list[Tensor]:
    """The gradient of the loss, the loss, and logged values."""
    params = model.flat_parameters().requires_grad_()
    with model.recording():
        loss, logs = model.loss(params, batch, 0, KEY, params.detach())
    (gradient,) = torch.autograd.grad(loss, params)
    return [gradient, loss.detach(), *(value.double() for value in logs.values())]


def is_mean(model: ClientModel, batch: tuple[Tensor, Tensor]) -> bool:
    """Whether the results on a batch are the means of those on its examples, each alone."""
    singles = [results(model, tuple(part[i : i + 1] for part in batch)) for i in range(len(batch[0]))]
    means = [torch.stack(parts).mean(0) for parts in zip(*singles, strict=True)]
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-11) for a, b in zip(results(model, batch), means, strict=True))


def cross_entropy(task: Task, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(task(x), y)
