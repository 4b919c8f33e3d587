"""FedMRUR's aggregation: the direction of the mean update, with the norm that the clients' updates have.

X. An, L. Shen, H. Hu, Y. Luo, "Federated Learning with Manifold Regularization and Normalized Update Reaggregation",
NeurIPS 2023, https://arxiv.org/abs/2311.05924.
"""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.aggregator import Aggregator, Weighting


class NormalizedReaggregation(Aggregator):
    """``a u / |u|``: u the weighted sum of the updates, a the weighted mean of their norms (Algorithm 1, line 15).

    Heterogeneous clients' updates are nearly orthogonal, so that their mean is short: the mean of M orthogonal updates
    of one length is stretched by sqrt(M). Equal updates, or one client alone, give their mean. If u is zero, so is the
    aggregate. The caption of Figure 2 has the sum of the norms; Algorithm 1 and the text have their mean, which is
    taken here. Computed in float64.

    Args:
        weighting: weigh all clients alike, as the paper does, or by their numbers of training examples.
    """

    def __init__(self, weighting: Weighting = "uniform") -> None:
        super().__init__(weighting)

    @override
    def add(self, rows: Tensor, weights: Tensor) -> None:
        rows, weights = rows.double(), weights.to(rows.device)
        self.accumulate("update", weights @ rows)
        self.accumulate("norm", weights @ torch.linalg.vector_norm(rows, dim=1))
        self.accumulate("weight", weights.sum())

    @override
    def result(self) -> Tensor:
        # u needs no division by the sum of weights: only its direction is used.
        update = self.sums["update"]
        length = torch.linalg.vector_norm(update)
        stretch = self.sums["norm"] / self.sums["weight"] / length
        return update * torch.where(length > 0, stretch, 0.0)  # 0 / 0 of a zero u is nan, and not taken
