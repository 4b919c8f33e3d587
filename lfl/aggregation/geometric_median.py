"""The geometric median of the updates: the point with the least mean distance from them.

K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal
Processing 70, 2022, https://arxiv.org/abs/1912.13445, Algorithm 2.
"""

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.aggregator import Weighting
from lfl.aggregation.gathering import GatheringAggregator, blocks, weighted_sum
from lfl.arguments import check_number


class GeometricMedian(GatheringAggregator):
    """The minimiser v of ``sum_i w_i |v - delta_i|``, by the smoothed Weiszfeld algorithm, from the mean.

    ``v <- sum_i b_i delta_i / sum_i b_i`` with ``b_i = w_i / max(nu, |v - delta_i|)``. It stays within reach of the
    honest clients as long as those hold more than half of the weight. Memory: M D numbers. Time: two passes over them
    an iteration.

    Args:
        weighting: the weights w_i: by numbers of training examples, as in the paper, or all alike. A Byzantine client
            may claim many examples.
        iterations: at most so many. Each divides the distance that a few far outliers pull by about their odds; the
            paper finds three enough.
        tolerance: stop when an iteration changes the mean distance by less than this share of it.
        smoothing: nu, in the unit of updates.
    """

    def __init__(
        self,
        weighting: Weighting = "examples",
        iterations: PositiveInt = 10,
        tolerance: NonNegativeFloat = 1e-6,
        smoothing: PositiveFloat = 1e-6,
    ) -> None:
        super().__init__(weighting)
        check_number("GeometricMedian", "iterations", iterations, least=1, whole=True)
        check_number("GeometricMedian", "tolerance", tolerance, least=0)
        check_number("GeometricMedian", "smoothing", smoothing, above=0)
        self.iterations = iterations
        self.tolerance = tolerance
        self.smoothing = smoothing

    @override
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        shares = weights / weights.sum()
        centre = weighted_sum(shares, rows)
        before = torch.inf
        for _ in range(self.iterations):
            distances = _distances(rows, centre).clamp(min=self.smoothing)
            mean = float(shares @ distances)
            if before - mean <= self.tolerance * mean:
                break
            before = mean
            pulls = shares / distances
            centre = weighted_sum(pulls / pulls.sum(), rows)
        return centre


def _distances(rows: Tensor, centre: Tensor) -> Tensor:
    """``|rows_i - centre|`` [M]."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    start = 0
    for block in blocks(rows):
        end = start + block.shape[1]
        total += block.sub_(centre[start:end]).square_().sum(dim=1)
        start = end
    return total.sqrt()
