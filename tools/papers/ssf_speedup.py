"""SSF's squared gradient norm against the number N K of stochastic gradients in a round (equation 124 of its paper).

The toy problem with all of N clients in every round, K local steps on one example each, and observations so noisy that
the second term of the bound, of order 1/sqrt(N K T), is the larger one. Steps are those of Corollary 1, equations (120)
to (122), with the constants of each problem: L, the largest of the clients'; the variance of a stochastic gradient at
X = 0, where it is largest; Delta_F + C_0, as the controls are zero at first. Norms are means over the last tenth of the
rounds, where the paper bounds the least of all expected ones, in units of ``sigma sqrt(L (Delta_F + C_0))``, which
differ between problems; a linear speed-up is a slope of -1/2 against N K on logarithmic scales.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from lfl.problems import MatrixRegressionData
from tools.papers.experiments import Laboratory, Run, extent
from tools.papers.findings import Findings
from tools.papers.gradient_norm import SQUARE, quadratic
from tools.papers.kept import Number, Quantity, numbers_of
from tools.papers.ssf import Method
from tools.papers.ssf_rho import DIM, at_end
from tools.papers.verdicts import short
from tools.table import Table

RIDGE, NOISE, HETEROGENEITY, BATCH = 0.1, 10.0, 0.1, 1
SSF = Method("SSF", "increment")
_EVERY = 10  # rounds between norms


@dataclass(frozen=True)
class Cell:
    """N clients that take K local steps."""

    clients: int
    steps: int

    def __str__(self) -> str:
        return f"N = {self.clients}, K = {self.steps}"

    @property
    def gradients(self) -> int:
        """Stochastic gradients of a round (N K)."""
        return self.clients * self.steps


@dataclass(frozen=True)
class Constants:
    """The constants of a problem that the bound has.

    Attributes:
        smoothness: L.
        variance: sigma^2, of a client's stochastic gradient at X = 0.
        gap: Delta_F + C_0.
        start: the squared norm of F's gradient at X = 0.
    """

    smoothness: float
    variance: float
    gap: float
    start: float

    @classmethod
    def of(cls, data: MatrixRegressionData, ridge: float) -> Constants:
        """Those of a problem that has been set up."""
        features, targets = data.examples
        clients = zip(features.chunk(data.num_clients), targets.chunk(data.num_clients), strict=True)
        terms = [quadratic(own_features, own_targets, ridge) for own_features, own_targets in clients]
        moments = torch.stack([moment for _, moment in terms]).square().sum((1, 2))  # |grad F_i(0)|^2
        singles = (features.square().sum(1) * targets.square().sum(1)).mean()  # of one example's gradient, -a b^T
        hessian, moment = quadratic(features, targets, ridge)
        return cls(
            smoothness=max(float(torch.linalg.matrix_norm(own_hessian, 2)) for own_hessian, _ in terms),
            variance=float(singles - moments.mean()) / data.batch_size,
            # F(0) - F* = <M, H^-1 M> / 2; C_0 is the mean of |grad F_i(0)|^2.
            gap=float((moment * torch.linalg.solve(hessian, moment)).sum() / 2 + moments.mean()),
            start=float(moment.square().sum()),
        )

    @property
    def unit(self) -> float:
        """The factor beside rho and N K T in the second term of the bound: sigma sqrt(L (Delta_F + C_0))."""
        return math.sqrt(self.variance * self.smoothness * self.gap)

    def rates(self, cell: Cell, share: float, rounds: int) -> tuple[float, float]:
        """The local and the global rate of Corollary 1.

        Args:
            cell: N and K.
            share: rho.
            rounds: T.
        """
        smooth, count = self.smoothness, cell.steps
        local = min(
            1 / (2 * count * smooth),
            math.sqrt(share / (864 * smooth**2 * count**3)),
            math.sqrt(self.gap / (100 * smooth * count * self.variance * rounds * share)),
        )
        stable = min(1 / (4 * smooth), share / (2 * smooth))
        quiet = math.sqrt(2 * cell.gradients * self.gap / (smooth * self.variance * rounds))
        return local, 1 / (1 / stable + 1 / quiet) / (local * count)

    def bound(self, cell: Cell, share: float, rounds: int) -> float:
        """The right-hand side of equation (123)."""
        first = 112 * self.smoothness * self.gap / (share**2 * rounds)
        return first + 8 * math.sqrt(2 / (cell.gradients * rounds)) * self.unit / share


@cache
def constants(clients: int, seed: int) -> Constants:
    """The constants of a seed's problem with so many clients."""
    data = MatrixRegressionData(
        num_clients=clients, heterogeneity=HETEROGENEITY, noise=NOISE, batch_size=BATCH, seed=seed
    )
    data.setup("fit")
    return Constants.of(data, RIDGE)


Norms = Mapping[Cell, Sequence[float]]  # squared, at the end, in units of the bound; one a seed


@dataclass(frozen=True)
class SpeedUp:
    """A study of the number of stochastic gradients.

    Attributes:
        title: what it is.
        cells: N and K.
        rank: r.
        rounds: T.
        seeds: runs of every cell.
    """

    title: str
    cells: Sequence[Cell]
    rank: int = 20
    rounds: int = 25_000
    seeds: int = 3

    @property
    def share(self) -> float:
        """The share r/d of the directions that a round moves (rho)."""
        return self.rank / DIM

    def run(self, cell: Cell, seed: int, rounds: int) -> Run:
        """One run."""
        local, server = constants(cell.clients, seed).rates(cell, self.share, rounds)
        overrides = (
            ("data.init_args.num_clients", cell.clients),
            ("data.init_args.heterogeneity", HETEROGENEITY),
            ("data.init_args.noise", NOISE),
            ("data.init_args.batch_size", BATCH),
            ("model.init_args.lr", local),
            ("trainer.server_optimizer", "torch.optim.SGD"),
            ("trainer.server_optimizer.init_args.lr", server),
            ("trainer.participation", "lfl.participation.FullParticipation"),
            ("trainer.local_steps", cell.steps),
            ("trainer.check_val_every_n_rounds", rounds),
            *SSF.overrides(self.rank),
            ("trainer.callbacks+", "tools.papers.gradient_norm.GradientNorm"),
            ("trainer.callbacks.init_args.every", _EVERY),
        )
        return Run(SSF.config, rounds, seed, (SQUARE,), overrides)

    def reproduce(self, laboratory: Laboratory, options: argparse.Namespace) -> Findings:
        """Make the runs; give what they have found."""
        rounds, seeds = extent(options, self.rounds, self.seeds, quick_rounds=30)
        found = laboratory.by_group(
            {cell: [self.run(cell, seed, rounds) for seed in range(seeds)] for cell in self.cells}
        )
        norms = {}
        for cell, outcomes in found.items():
            scales = [constants(cell.clients, seed) for seed in range(seeds)]
            norms[cell] = [
                at_end(outcome, rounds) * own.start / own.unit for outcome, own in zip(outcomes, scales, strict=True)
            ]
        return Findings(self.tabulate(norms, rounds), self.numbers(norms, rounds))

    def numbers(self, norms: Norms, rounds: int) -> list[Number]:
        """The norms, what they are of the bound, and the slope over all cells of each seed."""
        values = {str(cell): by_seed for cell, by_seed in norms.items()}
        shares = {str(cell): self.of_bound(cell, by_seed, rounds) for cell, by_seed in norms.items()}
        cells = numbers_of({"norm": Quantity(values), "of the bound": Quantity(shares)}, "cells")
        return cells + numbers_of({"slope in N K": Quantity({"SSF": slopes(norms)})}, "all")

    def of_bound(self, cell: Cell, norms: Sequence[float], rounds: int) -> list[float]:
        """Norms as shares of the bound (123), one a seed."""
        scales = [constants(cell.clients, seed) for seed in range(len(norms))]
        return [norm * own.unit / own.bound(cell, self.share, rounds) for norm, own in zip(norms, scales, strict=True)]

    def tabulate(self, norms: Norms, rounds: int) -> Table:
        """A line for each cell."""
        table = Table(f"{self.title}: {rounds:,} rounds", ["cell", "N K", "norm", "of the bound"])
        for cell, by_seed in norms.items():
            shares = self.of_bound(cell, by_seed, rounds)
            table.add(str(cell), str(cell.gradients), *(short(sum(v) / len(v)) for v in (by_seed, shares)))
        table.notes.append(
            "Squared gradient norms, means over the last tenth of the rounds and over seeds, in units of sigma "
            "sqrt(L (Delta_F + C_0)). Slopes against N K on logarithmic scales, by seed: "
            f"{', '.join(short(slope) for slope in slopes(norms))}."
        )
        return table


def slopes(norms: Norms) -> list[float]:
    """The slope of the logarithm of the norm in that of N K, by least squares over all cells; one a seed."""
    gradients = np.log([cell.gradients for cell in norms])
    return [float(np.polyfit(gradients, np.log(by_cell), 1)[0]) for by_cell in zip(*norms.values(), strict=True)]


TARGETS = {
    "ssf-speedup": SpeedUp(
        "SSF, speed-up in N K", [Cell(clients, steps) for clients in (5, 10, 20, 40) for steps in (1, 5)]
    )
}
