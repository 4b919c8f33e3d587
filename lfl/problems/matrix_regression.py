"""Federated matrix regression, the toy problem of the SSF paper (section 5.1).

"Subspace Optimization for Efficient Federated Learning under Heterogeneous Data". Clients share X_true, the means of
their features differ, and the optimum has a closed form.
"""

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from typing_extensions import override

from lfl.problems.base import ProblemData
from lfl.randomness import generator


class MatrixRegressionData(ProblemData):
    """``B_i = A_i X_true + noise``, rows of A_i from N(mu_i, I), mu_i from N(0, het^2 I), X_true from N(0, 1).

    Args:
        num_clients: number of clients (N).
        examples_per_client: number of examples of each client (n_i).
        dim: number of rows of X (d).
        outputs: number of columns of X (m).
        heterogeneity: standard deviation of the clients' mean features.
        noise: standard deviation of the observation noise.
        batch_size: examples in one step.
        seed: seed of the problem's data.
    """

    def __init__(
        self,
        num_clients: PositiveInt = 20,
        examples_per_client: PositiveInt = 50,
        dim: PositiveInt = 100,
        outputs: PositiveInt = 10,
        heterogeneity: NonNegativeFloat = 0.5,
        noise: NonNegativeFloat = 0.01,
        batch_size: PositiveInt = 20,
        seed: int = 0,
    ) -> None:
        super().__init__(num_clients, examples_per_client, batch_size)
        self.dim = dim
        self.outputs = outputs
        self.heterogeneity = heterogeneity
        self.noise = noise
        self.seed = seed

    @override
    def setup(self, stage: str) -> None:
        draws = generator(self.seed, "matrix regression")

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draws, dtype=torch.float64)

        truth = normal(self.dim, self.outputs)
        means = self.heterogeneity * normal(self.num_clients, 1, self.dim)
        features = means + normal(self.num_clients, self.examples_per_client, self.dim)
        targets = features @ truth + self.noise * normal(self.num_clients, self.examples_per_client, self.outputs)
        self.examples = (features.flatten(0, 1), targets.flatten(0, 1))


class MatrixRegression(LightningModule):
    """``f_i(X) = 1/(2 n_i) |A_i X - B_i|^2 + ridge/2 |X|^2``; validation logs ``|X - X*| / |X*|``.

    X is one weight ``[d, m]``, so a layerwise basis acts on its rows, as in the paper. It starts at zero.

    Args:
        dim: number of rows of X (d).
        outputs: number of columns of X (m).
        ridge: weight of the squared norm of X in the objective.
        lr: learning rate of the module's SGD.
    """

    def __init__(
        self,
        dim: PositiveInt = 100,
        outputs: PositiveInt = 10,
        ridge: NonNegativeFloat = 0.1,
        lr: PositiveFloat = 0.01,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, outputs))
        self.ridge = ridge
        self.lr = lr
        self._optimum: Tensor | None = None  # X* of the data seen in validation

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The objective on a batch."""
        features, targets = batch
        squares = (features @ self.weight - targets).square().sum()
        loss: Tensor = 0.5 / len(features) * squares + 0.5 * self.ridge * self.weight.square().sum()
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        """Log ``val_error``, the relative error of X; the batch is all data, with equally many examples per client."""
        if self._optimum is None:
            self._optimum = self.optimum(*batch)
        error = torch.linalg.vector_norm(self.weight - self._optimum)
        self.log("val_error", error / torch.linalg.vector_norm(self._optimum))

    def optimum(self, features: Tensor, targets: Tensor) -> Tensor:
        """Minimiser X* of the clients' mean objective, ``(A^T A / n + ridge I)^-1 A^T B / n`` over all n examples."""
        count, dim = features.shape
        gram = features.mT @ features / count + self.ridge * torch.eye(dim).to(features)
        solution: Tensor = torch.linalg.solve(gram, features.mT @ targets / count)
        return solution

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)
