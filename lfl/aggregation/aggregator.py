"""Aggregators: rows and weights to one vector."""

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
        weighting: weigh a client by its number of training examples, or all alike.
    """

    def __init__(self, weighting: Weighting = "examples") -> None:
        check_choice("", "weighting", weighting, ("examples", "uniform"))
        self.weighting = weighting
        self.sums: dict[str, Tensor] = {}  # over all processes, once the loop has joined them

    def weights(self, num_examples: Tensor) -> Tensor:
        """Weights of a cohort [C], float64, not normalised."""
        return num_examples.double() if self.weighting == "examples" else torch.ones(len(num_examples)).double()

    def start(self) -> None:
        """Begin a round."""
        self.sums = {}

    def accumulate(self, name: str, value: Tensor) -> None:
        """Add to a named float64 sum; sums are all the state there is between cohorts."""
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
        if "update" not in self.sums:  # one client: no copy of its row in float64
            self.sums["update"] = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
        self.sums["update"].add_(rows[0], alpha=float(weights[0]))

    @override
    def result(self) -> Tensor:
        return self.sums["update"] / self.sums["weight"]
