"""Aggregators: from the clients' updates and weights to one update."""

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from lfl.arguments import check_choice

Weighting = Literal["examples", "uniform"]


class Aggregator(ABC):
    """A running aggregate over the clients of a round: rows are added as they arrive and never kept.

    The weighting is part of the objective. ``examples`` with uniform sampling of clients minimises the mean over all
    examples; ``uniform`` the mean over clients, which is what drift correction (SCAFFOLD and its kin) is stated for.

    Args:
        weighting: weigh clients by their numbers of training examples (``examples``), or all alike (``uniform``).

    Attributes:
        sums: named sums over the round's clients; over all processes when ``result`` is called.
    """

    def __init__(self, weighting: Weighting = "examples") -> None:
        check_choice("", "weighting", weighting, ("examples", "uniform"))
        self.weighting = weighting
        self.sums: dict[str, Tensor] = {}

    def weights(self, num_examples: Tensor) -> Tensor:
        """Weights of a cohort [C], float64, not normalised."""
        return num_examples.double() if self.weighting == "examples" else torch.ones(len(num_examples)).double()

    def start(self) -> None:
        """Begin a round: forget the sums of the last one."""
        self.sums = {}

    def accumulate(self, name: str, value: Tensor) -> None:
        """Add ``value`` to a named float64 sum.

        Sums are the only state of an aggregator, so that the loop can add up those of several processes.
        """
        if name in self.sums:
            self.sums[name] += value
        else:
            self.sums[name] = value.double()

    @abstractmethod
    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add the updates of a cohort [C, n] with their weights [C] (float64)."""

    @abstractmethod
    def result(self) -> Tensor:
        """The aggregate [n], float64."""


class MeanAggregator(Aggregator):
    """The weighted mean: ``sum_i w_i delta_i`` with ``w_i`` normalised over the round's clients, in float64."""

    @override
    def add(self, rows: Tensor, weights: Tensor) -> None:
        self.accumulate("weight", weights.sum().to(rows.device))
        if len(rows) > 1:
            self.accumulate("update", weights.to(rows.device) @ rows.double())
            return
        # One client: `add_` converts while it adds, and saves a float64 copy of the row (D numbers a client).
        if "update" not in self.sums:
            self.sums["update"] = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        self.sums["update"].add_(rows[0], alpha=float(weights[0]))

    @override
    def result(self) -> Tensor:
        return self.sums["update"] / self.sums["weight"]
