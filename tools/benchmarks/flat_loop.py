"""The floor of the speed benchmark: federated averaging by hand, in one process, as fast as ordinary PyTorch goes.

One network whose parameters are views of one flat vector, data as tensors, batches by index, ``torch.autograd.grad``,
one foreach step, a running sum of updates. No framework, no logging, no checks, no other algorithm than this one.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FlatLoop:
    """Federated averaging with local SGD and cross entropy, for networks without buffers.

    Args:
        network: from images to logits; its parameters become views of a flat vector.
        inputs: training examples [n, ...].
        targets: their classes [n].
        clients: positions of each client's examples.
        epochs: local epochs.
        batch_size: examples in a step.
        lr: learning rate.
    """

    def __init__(
        self,
        network: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        clients: list[Tensor],
        epochs: int,
        batch_size: int,
        lr: float,
    ) -> None:
        self.network, self.inputs, self.targets, self.clients = network, inputs, targets, clients
        self.epochs, self.batch_size, self.lr = epochs, batch_size, lr
        parameters: list[Tensor] = list(network.parameters())
        self.flat = torch.cat([p.detach().flatten() for p in parameters])
        for parameter, part in zip(parameters, self.flat.split([p.numel() for p in parameters]), strict=True):
            parameter.data = part.view_as(parameter)
        self.parameters = parameters
        self.server = self.flat.clone()
        self._draws = torch.Generator().manual_seed(0)

    def run_round(self, participants: list[int]) -> float:
        """Run one round; returns the seconds it took."""
        started = time.perf_counter()
        total, weight = torch.zeros_like(self.flat), 0
        for client in participants:
            examples = self.clients[client]
            self._train(examples)
            total.add_(self.flat, alpha=len(examples))
            weight += len(examples)
        torch.div(total, weight, out=self.server)
        return time.perf_counter() - started

    def _train(self, examples: Tensor) -> None:
        self.flat.copy_(self.server)
        for _ in range(self.epochs):
            order = examples[torch.randperm(len(examples), generator=self._draws)]
            for batch in order.split(self.batch_size):
                loss = F.cross_entropy(self.network(self.inputs[batch]), self.targets[batch])
                gradients = torch.autograd.grad(loss, self.parameters)
                with torch.no_grad():
                    torch._foreach_add_(self.parameters, gradients, alpha=-self.lr)

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, targets: Tensor) -> float:
        """Accuracy of the server's model."""
        self.flat.copy_(self.server)
        right = [
            (self.network(x).argmax(1) == y).sum() for x, y in zip(inputs.split(500), targets.split(500), strict=True)
        ]
        return float(torch.stack(right).sum() / len(targets))
