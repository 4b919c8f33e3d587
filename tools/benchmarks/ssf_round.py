"""A round of SSF on its paper's toy problem, as `lfl` runs it and as bare tensor operations.

The bare round takes ten clients as one batched product; its gradient is written by hand. No modules, no autograd, no
losses, no logging.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lfl.aggregation import MeanAggregator
from lfl.callbacks import SSF, FederatedCallback
from lfl.checkpointing import Checkpointing
from lfl.participation import UniformParticipation
from lfl.problems import MatrixRegression, MatrixRegressionData
from lfl.randomness import client_keys, generator, random_bits
from lfl.round import Round
from lfl.subspace import LayerwiseSubspace
from lfl.subspace.base import orthonormal_rows
from tools.table import Table
from tools.training import fitted

RANK, CLIENTS, STEPS = 20, 10, 5
CHECKED = 20  # rounds in which both must agree


@dataclass(frozen=True)
class Draws:
    """The random choices of a round.

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
        """Run one round of all participants together."""
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


def random_draws(data: MatrixRegressionData, seed: int) -> Callable[[int], Draws]:
    """Draws from one of torch's generators, as a script by hand would make them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(number: int) -> Draws:
        del number
        gaussian = torch.randn(data.dim, RANK, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(gaussian)
        basis = (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).mT.contiguous()
        clients = torch.randperm(data.num_clients, generator=generator)[:CLIENTS]
        examples = torch.randint(data.examples_per_client, (CLIENTS, STEPS, data.batch_size), generator=generator)
        return Draws(basis, clients, examples + data.examples_per_client * clients[:, None, None])

    return draw


def trainer_draws(data: MatrixRegressionData, seed: int) -> Callable[[int], Draws]:
    """The draws of the trainer's rounds."""
    participation = UniformParticipation(CLIENTS)

    def draw(number: int) -> Draws:
        basis = orthonormal_rows(RANK, data.dim, generator(seed, "subspace", number - 1, "weight"))
        clients = participation.select(number, data.num_clients, seed)
        bits = random_bits(client_keys(clients, seed, "shuffle", number), STEPS * data.batch_size)
        examples = (bits % data.examples_per_client).view(CLIENTS, STEPS, data.batch_size)
        return Draws(basis, clients, examples + data.examples_per_client * clients[:, None, None])

    return draw


class Turns(FederatedCallback):
    """Runs a block of bare rounds after each block of the trainer's, and times both.

    Args:
        bare: the bare rounds.
        block: rounds in a block.
    """

    def __init__(self, bare: BareSSF, block: int) -> None:
        self.bare, self.block = bare, block
        self.trainer_ms: list[float] = []
        self.bare_ms: list[float] = []
        self._started = 0.0

    @override
    def on_round_end(self, round: Round) -> None:
        if round.number % self.block:
            return
        now = time.perf_counter()
        for number in range(self.block):
            self.bare.run_round(number + 1)
        end = time.perf_counter()
        if round.number > self.block:  # the first block warms up
            self.trainer_ms.append(1e3 * (now - self._started) / self.block)
            self.bare_ms.append(1e3 * (end - now) / self.block)
        self._started = time.perf_counter()


def run_trainer(data: MatrixRegressionData, rounds: int, *watching: FederatedCallback) -> Tensor:
    """Run ``configs/problems/matrix_regression_ssf.yaml``; returns x."""
    with fitted(
        MatrixRegression(),
        data,
        precision="64-true",
        engine="vectorized",
        trace_steps=True,
        max_rounds=rounds,
        checkpoint=Checkpointing(every_n_rounds=500),
        check_val_every_n_rounds=10,
        participation=UniformParticipation(CLIENTS),
        local_steps=STEPS,
        local_sampling="replacement",
        aggregator=MeanAggregator("uniform"),
        callbacks=[SSF(LayerwiseSubspace(RANK)), *watching],
    ) as trainer:
        return trainer.server.vector.clone()


def difference(data: MatrixRegressionData) -> float:
    """Largest difference of x after some rounds of both on the same draws."""
    bare = BareSSF(MatrixRegression(), data, trainer_draws(data, seed=0))
    for number in range(CHECKED):
        bare.run_round(number + 1)
    return float((run_trainer(data, CHECKED) - bare.x.flatten()).abs().max())


def table_of(rounds: int, block: int) -> Table:
    """Check that both compute the same, then time them in turns."""
    data = MatrixRegressionData()
    data.setup("fit")
    largest = difference(data)
    if largest > 1e-10:
        raise AssertionError(f"The bare rounds differ from the trainer's by {largest:.3g}.")
    turns = Turns(BareSSF(MatrixRegression(), data, random_draws(data, seed=0)), block)
    run_trainer(data, rounds, turns)
    ratios = [ours / bare for ours, bare in zip(turns.trainer_ms, turns.bare_ms, strict=True)]
    table = Table(
        f"A round of SSF on the toy problem, ms; {torch.get_num_threads()} thread(s), blocks of {block} rounds in "
        f"turns; the two differ by {largest:.1g} after {CHECKED} rounds",
        ["", "median", "least", "most"],
    )
    for name, values in (("bare tensor operations", turns.bare_ms), ("lfl", turns.trainer_ms), ("ratio", ratios)):
        table.add(name, *(f"{value:.2f}" for value in (statistics.median(values), min(values), max(values))))
    return table
