"""A round of SSF on the matrix regression as bare tensor operations: what ``benchmark.py`` measures lfl against.

Ten clients are one batched product; the gradient is written by hand. No modules, no autograd, no losses, no logging.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lfl.problems import MatrixRegression, MatrixRegressionData


@dataclass(frozen=True)
class Draws:
    """What is random in a round.

    Attributes:
        basis: P [r, d], orthonormal rows.
        clients: ids of the participants [S].
        examples: rows of the data for each client and step [S, K, b].
    """

    basis: Tensor
    clients: Tensor
    examples: Tensor


class BareSSF:
    """SSF with ``control_update: increment`` and plain SGD, from x = 0 and controls of zero.

    Args:
        model: for the ridge and the learning rate.
        data: the problem, set up.
        draws: from a round's number, counted from 1.
    """

    def __init__(self, model: MatrixRegression, data: MatrixRegressionData, draws: Callable[[int], Draws]) -> None:
        self.ridge, self.lr, self.draws = model.ridge, model.lr, draws
        self.features, self.targets = (tensor.double() for tensor in data.examples)
        self.x = torch.zeros(data.dim, data.outputs, dtype=torch.float64)
        self.control = torch.zeros_like(self.x)
        self.controls = torch.zeros(data.num_clients, *self.x.shape, dtype=torch.float64)

    def run_round(self, number: int) -> None:
        """One round of all participants together."""
        draws = self.draws(number)
        down, up = draws.basis, draws.basis.mT
        clients, steps, batch = draws.examples.shape
        own = self.controls[draws.clients]
        projected, own_projected = down @ self.control, down @ own
        z = torch.zeros(clients, len(down), self.x.shape[1], dtype=torch.float64)
        for step in range(steps):
            params = self.x + up @ z
            rows = draws.examples[:, step].reshape(-1)
            features = self.features.index_select(0, rows).view(clients, batch, -1)
            residuals = torch.bmm(features, params) - self.targets.index_select(0, rows).view(clients, batch, -1)
            gradients = torch.bmm(features.mT, residuals) / batch + self.ridge * params
            z = z - self.lr * (down @ gradients - own_projected + projected)
        change = -projected - z / (steps * self.lr)
        self.controls[draws.clients] = own + up @ change
        self.control = self.control + up @ (change.sum(0) / len(self.controls))
        self.x = self.x + up @ z.mean(0)


def random_draws(
    data: MatrixRegressionData, rank: int, clients_per_round: int, steps: int, seed: int
) -> Callable[[int], Draws]:
    """Draws from one of torch's generators, as a script by hand would make them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(number: int) -> Draws:
        del number
        gaussian = torch.randn(data.dim, rank, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian)
        basis = (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).mT.contiguous()
        clients = torch.randperm(data.num_clients, generator=generator)[:clients_per_round]
        shape = (clients_per_round, steps, data.batch_size)
        examples = torch.randint(data.examples_per_client, shape, generator=generator)
        return Draws(basis, clients, examples + data.examples_per_client * clients[:, None, None])

    return draw
