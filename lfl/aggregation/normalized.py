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

    Heterogeneous clients' updates are nearly orthogonal, and their mean is short: M orthogonal updates of one length
    are stretched by sqrt(M). Equal updates, or one client alone, give the mean; where u is zero, the aggregate is. The
    caption of Figure 2 has the sum of the norms, Algorithm 1 and the text their mean, which is taken. In float64.

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
        update = self.sums["update"]
        length = torch.linalg.vector_norm(update)
        stretch = self.sums["norm"] / self.sums["weight"] / length
        return update * torch.where(length > 0, stretch, 0.0)
