"""Means of updates that have been shortened, so that none of them counts for too much.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019,
https://arxiv.org/abs/1911.07963, section 4 (a threshold). With the median of the norms there is none to choose.
"""

import torch
from jsonargparse.typing import PositiveFloat
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.aggregator import Aggregator, Weighting
from lfl.aggregation.gathering import GatheringAggregator, squared_norms, weighted_sum
from lfl.arguments import check_number


class NormClipping(Aggregator):
    """The weighted mean of ``delta_i min(1, S / |delta_i|)``: updates longer than S are shortened to it.

    One client moves the mean by w_i S at most, in whatever direction. With S above all norms it is the mean, to
    rounding. No row is kept.

    Args:
        threshold: S, in the unit of updates.
        weighting: weigh clients by their numbers of training examples, or all alike.
    """

    decoded = True

    def __init__(self, threshold: PositiveFloat, weighting: Weighting = "examples") -> None:
        super().__init__(weighting)
        check_number("NormClipping", "threshold", threshold, above=0)
        self.threshold = threshold

    @override
    def add(self, rows: Tensor, weights: Tensor) -> None:
        weights = weights.to(rows.device)
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        self.accumulate("update", (weights * shrinkage(norms, self.threshold)) @ rows.double())
        self.accumulate("weight", weights.sum())

    @override
    def result(self) -> Tensor:
        return self.sums["update"] / self.sums["weight"]


class MedianNormClipping(GatheringAggregator):
    """``NormClipping`` whose threshold is, in every round, the median of the norms of the updates.

    The threshold is no more than the largest norm of an honest client as long as fewer than half of the participants
    are Byzantine. Memory: M D numbers.

    Args:
        weighting: weigh clients by their numbers of training examples, or all alike. The median counts all alike.
    """

    def __init__(self, weighting: Weighting = "examples") -> None:
        super().__init__(weighting)

    @override
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        norms = squared_norms(rows).sqrt()
        return weighted_sum(weights / weights.sum() * shrinkage(norms, norms.quantile(0.5)), rows)


def shrinkage(norms: Tensor, threshold: float | Tensor) -> Tensor:
    """``min(1, threshold / norms)``, and 1 for a norm of zero."""
    return torch.where(norms > threshold, threshold / norms, 1.0)
