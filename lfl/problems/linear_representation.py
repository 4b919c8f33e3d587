"""Federated linear representation learning, the problem of SRPFL's theory (section 4, Algorithm 2).

"Straggler-Resilient Personalized Federated Learning". Clients share the column space of B* and have heads of their own.
For a given B a client's best head has a closed form. So B is the only parameter, and a round is one gradient step on B
at the best heads. With ``DoublingParticipation`` this is SRPFL; with all clients in every round it is FedRep.
"""

import math
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.func import vmap
from typing_extensions import override

from lfl.arguments import check_choice
from lfl.callback import FederatedCallback
from lfl.client.layout import ParameterLayout
from lfl.client.random_ops import ClientRandom
from lfl.data.stores import Loader
from lfl.federation import Federation
from lfl.problems.base import ProblemData
from lfl.randomness import client_keys, generator
from lfl.round import Round
from lfl.subspace.base import orthonormal


class LinearRepresentationData(ProblemData):
    """``y = <w_i, B*^T x> + noise z``, x and z from N(0, I); w_i of norm sqrt(k) and orthonormal B* at random.

    A batch has all examples of a client. The stored examples are those from which the start is computed; with
    ``fresh`` clients train on new ones in every round. The only batch of the validation is B* itself.

    Args:
        num_clients: number of clients (N).
        examples_per_client: number of examples of each client (m), at least k.
        dim: number of rows of B* (d).
        rank: number of columns of B* (k).
        noise: standard deviation of the observation noise.
        fresh: draw new examples in every round, as Algorithm 2 does (line 9).
        seed: seed of the problem's data.

    Attributes:
        truth: the true representation B* [d, k].
        heads: the clients' true heads w_i [N, k].
    """

    truth: Tensor
    heads: Tensor

    def __init__(
        self,
        num_clients: PositiveInt = 64,
        examples_per_client: PositiveInt = 20,
        dim: PositiveInt = 20,
        rank: PositiveInt = 2,
        noise: NonNegativeFloat = 1.0,
        fresh: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(num_clients, examples_per_client, batch_size=examples_per_client)
        if not rank <= min(dim, examples_per_client):
            raise ValueError(
                f"`rank={rank}` must be at most `dim={dim}`, and at most `examples_per_client={examples_per_client}`: "
                "a head of `rank` numbers is fitted to them."
            )
        self.dim = dim
        self.rank = rank
        self.noise = noise
        self.fresh = fresh
        self.seed = seed

    @property
    @override
    def has_random_transforms(self) -> bool:  # type: ignore[override]
        return self.fresh

    @override
    def setup(self, stage: str) -> None:
        draws = generator(self.seed, "linear representation")
        self.truth = orthonormal(torch.randn(self.dim, self.rank, generator=draws, dtype=torch.float64))
        heads = torch.randn(self.num_clients, self.rank, generator=draws, dtype=torch.float64)
        self.heads = math.sqrt(self.rank) * nn.functional.normalize(heads, dim=1)
        positions = torch.arange(self.num_clients * self.examples_per_client)
        self.examples = self._draw(positions, client_keys(positions, self.seed, "linear representation"))

    @override
    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        super().place(device, dtype)
        self.truth = self.truth.to(device, dtype)
        self.heads = self.heads.to(device, dtype)

    @override
    def gather(self, indices: Tensor, keys: Tensor | None = None) -> tuple[Tensor, ...]:
        # Keys come with training batches only: the engine gives them for random transforms, a new one in every round.
        return self._draw(indices, keys) if self.fresh and keys is not None else super().gather(indices)

    @override
    def batches(self, plan: Any) -> Any:
        return (self.gather(indices, keys) for indices, keys in plan)

    @override
    def val_dataloader(self) -> Any:
        return Loader(lambda: iter([(self.truth,)]), 1)

    def moments(self) -> Tensor:
        """The matrix [d, d] of the means of ``y^2 x x^T`` over all clients' stored examples (lines 2 and 3)."""
        features, targets = self.examples
        weighted = features * targets.square()[:, None]
        return features.mT @ weighted / len(features)

    def _draw(self, indices: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Draw examples for the clients that own ``indices`` (...): x (..., d) and y (...), each from its own key."""

        # `ClientRandom` computes torch's random operations from a key, also under vmap: all examples in one operation.
        def normal(key: Tensor) -> Tensor:
            with ClientRandom(key):
                return torch.randn(self.dim + 1, dtype=torch.float64)

        drawn = vmap(normal)(keys.reshape(-1)).view(*keys.shape, -1).to(self.truth)
        features, noise = drawn[..., :-1], drawn[..., -1]
        heads = self.heads[(indices // self.examples_per_client).to(self.heads.device)]
        return features, ((features @ self.truth) * heads).sum(dim=-1) + self.noise * noise


class LinearRepresentation(LightningModule):
    """``f_i(B) = min_w 1/(2m) sum_j (y_j - <w, B^T x_j>)^2``; validation logs the distance of B from B*.

    Args:
        dim: number of rows of B (d).
        rank: number of columns of B (k).
        lr: local learning rate (eta) of the module's SGD; at most 1/8 in Theorem 4.7, where the heads' covariance is I.
    """

    def __init__(self, dim: PositiveInt = 20, rank: PositiveInt = 2, lr: PositiveFloat = 0.125) -> None:
        super().__init__()
        self.representation = nn.Parameter(torch.eye(dim, rank))
        self.lr = lr

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss at the best head of this batch (lines 10 and 11)."""
        features, targets = batch
        projected = features @ self.representation
        # The head is a constant: at the minimum over w the gradient of f_i with respect to B needs no derivative of w.
        residuals = projected @ best_head(projected.detach(), targets) - targets
        loss: Tensor = 0.5 * residuals.square().mean()
        return loss

    def validation_step(self, batch: tuple[Tensor]) -> None:
        """Log ``val_distance``, in [0, 1]."""
        self.log("val_distance", principal_distance(self.representation, batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Orthonormalize(FederatedCallback):
    """The server of Algorithm 2: sets the first B (lines 2, 3, 5), and makes its columns orthonormal after each step.

    The latter is line 14.

    Args:
        start: ``moments`` is the paper's start, the leading eigenvectors of the mean of ``y^2 x x^T``, for which each
            client sends a matrix [d, d] once (not counted in the ledger); ``distance`` is a random B at a given
            distance from B*.
        distance: the sine of all principal angles between the start and B*, for ``start: distance``.
    """

    def __init__(self, start: Literal["moments", "distance"] = "moments", distance: NonNegativeFloat = 0.8) -> None:
        check_choice("Orthonormalize", "start", start, ("moments", "distance"))
        if start == "distance" and not 0 <= distance <= 1:
            raise ValueError(f"`distance={distance}` of Orthonormalize must be in [0, 1].")
        self.start = start
        self.distance = distance

    @override
    def check(self, layout: ParameterLayout) -> None:
        if len(layout.shapes) != 1 or len(layout.shapes[0]) != 2:
            raise ValueError(f"Orthonormalize needs a model of one matrix, B; this one has {', '.join(layout.names)}.")

    @override
    def on_run_start(self, federation: Federation) -> None:
        data = federation.data
        if not isinstance(data, LinearRepresentationData):
            raise ValueError(f"Orthonormalize starts from LinearRepresentationData, not from {type(data).__name__}.")
        if self.start == "moments":
            start = leading_subspace(data.moments(), data.rank)
        else:
            start = subspace_at(data.truth, self.distance, generator(data.seed, "start"))
        federation.server.vector.copy_(start.flatten())
        self._federation = federation

    @override
    def on_server_step(self, round: Round) -> None:
        if round.update is None:  # nobody took part: x stays what it is, to the bit
            return
        vector = self._federation.server.vector
        vector.copy_(orthonormal(vector.view(self._federation.layout.shapes[0])).flatten())


def best_head(projected: Tensor, targets: Tensor) -> Tensor:
    """``argmin_w |projected w - targets|`` [k] for projected [m, k]."""
    # By the normal equations, which square the condition number: so in float64. `solve_ex` does not check for singular
    # matrices, as the CPU would have to wait for the device to know.
    wide = projected.double()
    head: Tensor = torch.linalg.solve_ex(wide.mT @ wide, wide.mT @ targets.double()).result
    return head.to(targets)


def principal_distance(first: Tensor, second: Tensor) -> Tensor:
    """The sine of the largest principal angle between column spaces, ``|(I - B1 B1^T) B2|_2`` of orthonormal bases."""
    base, other = orthonormal(first), orthonormal(second)
    distance: Tensor = torch.linalg.matrix_norm(other - base @ (base.mT @ other), ord=2)
    return distance


def leading_subspace(matrix: Tensor, rank: int) -> Tensor:
    """An orthonormal basis [d, k] of the span of a symmetric matrix's leading eigenvectors.

    Its upper k rows are lower triangular. This makes the basis unique: the signs of eigenvectors, and their directions
    where eigenvalues are equal, depend on the library; their span does not.
    """
    vectors = torch.linalg.eigh(matrix).eigenvectors[:, -rank:]
    return orthonormal(vectors @ vectors[:rank].mT)


def subspace_at(truth: Tensor, distance: float, draws: torch.Generator) -> Tensor:
    """Draw an orthonormal basis [d, k] whose principal angles to ``truth`` [d, k] all have the sine ``distance``.

    Raises:
        ValueError: d < 2 k, where two spaces of dimension k always meet.
    """
    dim, rank = truth.shape
    if dim < 2 * rank:
        raise ValueError(f"A start at a given distance needs `dim` of at least 2 * `rank`, found {dim} and {rank}.")
    noise = torch.randn(truth.shape, generator=draws, dtype=torch.float64).to(truth)
    # Orthogonal to the truth: cos * truth + sin * away is a rotation by the same angle in k planes.
    away = orthonormal(noise - truth @ (truth.mT @ noise))
    return math.sqrt(1 - distance**2) * truth + distance * away
