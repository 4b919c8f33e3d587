"""Measures how clients' updates agree, and in how many directions the server moves."""

from typing import Any

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.callback import FederatedCallback
from lfl.federation import Federation
from lfl.round import Cohort, Round

_SUMS = "diag"
_SUMMED = ("update", "direction", "moved", "norm", "square")


class Diagnostics(FederatedCallback):
    """Logs how far the updates of a round agree, and the spectrum of the server's last steps; changes nothing.

    Of the M updates delta_i, all weighted alike:

    - ``diag/cosine``: the mean cosine over pairs of updates that are not zero; not logged if there is no such pair.
    - ``diag/norm_ratio``: ``|mean delta_i| / mean |delta_i|``, the inverse of what FedMRUR's aggregation stretches by.
    - ``diag/drift``: ``sqrt(mean |delta_i - mean delta|^2) / |mean delta|``.

    Of the last ``trajectory`` steps ``x+ - x`` with singular values s (zeros until there are as many):

    - ``diag/trajectory/energy_1``, ``energy_5``: the share of ``sum s^2`` in the largest 1 and 5.
    - ``diag/trajectory/effective_rank``: ``exp(-sum p log p)`` with ``p = s / sum s`` (Roy & Vetterli, 2007).

    A ratio whose denominator is zero is logged as zero. Sums over clients are in float64 and do not depend on cohorts
    and processes; with several processes, 2 D more numbers are exchanged in a round that is logged. Every round costs
    ``trajectory`` inner products of D numbers, logged or not. State: the steps [trajectory, D] and their inner
    products.

    Args:
        every_n_rounds: log every so many rounds.
        trajectory: number of the server's last steps that are kept; 0 for none.
    """

    is_unique = True
    observes = True

    def __init__(self, every_n_rounds: PositiveInt = 1, trajectory: NonNegativeInt = 20) -> None:
        self.every_n_rounds = every_n_rounds
        self.trajectory = trajectory
        self._steps = torch.empty(0)
        self._products = torch.empty(0)

    @override
    def on_run_start(self, federation: Federation) -> None:
        self._server = federation.server
        x = federation.server.vector
        self._steps = x.new_zeros(self.trajectory, len(x))
        self._products = x.new_zeros(self.trajectory, self.trajectory, dtype=torch.float64)

    @override
    def on_cohort_end(self, cohort: Cohort) -> None:
        if not self._is_due(cohort.round):
            return
        # Coordinates will do: bases are orthonormal, so that norms and cosines are those of the lifted updates.
        rows = cohort.delta.double()
        norms = torch.linalg.vector_norm(rows, dim=1)
        moved = norms > 0
        sums = {
            "update": rows.sum(dim=0),
            "direction": torch.where(moved, 1 / norms, 0.0) @ rows,
            "moved": moved.sum(),
            "norm": norms.sum(),
            "square": norms.square().sum(),
        }
        for name, value in sums.items():
            cohort.round.accumulate(f"{_SUMS}/{name}", value)

    @override
    def on_server_step(self, round: Round) -> None:
        if self.trajectory == 0:
            return
        step = self._server.vector - round.server
        # A ring: the oldest step makes room, and with it its row and column of the Gram matrix.
        slot = (round.number - 1) % self.trajectory
        self._steps[slot] = step
        # In float64, as small singular values are lost in products; row by row, as a float64 copy of all steps would
        # take twice their memory.
        products = torch.stack([row.double() @ step.double() for row in self._steps])
        self._products[slot] = self._products[:, slot] = products

    @override
    def on_round_end(self, round: Round) -> None:
        if not self._is_due(round):
            return
        if round.num_reported:
            sums = {name: round.sums[f"{_SUMS}/{name}"] for name in _SUMMED}
            for name, value in agreement(sums, round.num_reported).items():
                round.log(f"diag/{name}", value)
        if self.trajectory:
            for name, value in spectrum(self._products).items():
                round.log(f"diag/trajectory/{name}", value)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps.cpu(), "products": self._products.cpu()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = state_dict["steps"].to(self._steps)
        self._products = state_dict["products"].to(self._products)

    def _is_due(self, round: Round) -> bool:
        return round.number % int(self.every_n_rounds) == 0


def agreement(sums: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """Mean cosine, ratio of norms, and drift of ``count`` updates.

    Args:
        sums: sums over the updates, float64: ``update`` [n], ``direction`` (updates of norm one) [n], and the numbers
            ``moved`` (of updates that are not zero), ``norm`` and ``square`` (of norms and their squares).
        count: number of updates (M).
    """
    length = torch.linalg.vector_norm(sums["update"] / count)
    # mean |delta_i - mean delta|^2 = mean |delta_i|^2 - |mean delta|^2, which rounding may make negative.
    spread = (sums["square"] / count - length.square()).clamp(min=0.0).sqrt()
    metrics = {"norm_ratio": _ratio(length, sums["norm"] / count), "drift": _ratio(spread, length)}
    moved = sums["moved"]
    if moved > 1:
        # |sum_i u_i|^2 is the sum of all cosines, of which `moved` are of a vector with itself.
        metrics["cosine"] = (sums["direction"].square().sum() - moved) / (moved * (moved - 1))
    return metrics


def spectrum(products: Tensor) -> dict[str, Tensor]:
    """Shares of energy and effective rank of vectors with Gram matrix ``products`` [T, T]; zero for zero vectors."""
    # Eigenvalues of the Gram matrix are squared singular values; rounding may leave small ones negative.
    energies = torch.linalg.eigvalsh(products).clamp(min=0.0).flip(0)
    values = energies.sqrt()
    shares = _ratio(values, values.sum())
    rank = torch.special.entr(shares).sum().exp() * (values.sum() > 0)
    largest = {f"energy_{k}": _ratio(energies[:k].sum(), energies.sum()) for k in (1, 5)}
    return {**largest, "effective_rank": rank}


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return torch.where(denominator > 0, numerator / denominator, 0.0)
