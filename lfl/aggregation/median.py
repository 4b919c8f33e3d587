"""The median of every coordinate.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, https://arxiv.org/abs/1803.01498, Definition 1.
"""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.gathering import GatheringAggregator, blocks


class CoordinateMedian(GatheringAggregator):
    """The median of the clients' updates, coordinate by coordinate; of an even number the mean of the middle two.

    Every coordinate lies between those of honest clients as long as fewer than half of the participants are Byzantine.
    All clients count alike: a client may claim any number of examples. Memory: M D numbers.
    """

    def __init__(self) -> None:
        super().__init__("uniform")

    @override
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        del weights
        lower, upper = (len(rows) - 1) // 2, len(rows) // 2
        ordered = (block.sort(dim=0).values for block in blocks(rows))
        return torch.cat([(block[lower] + block[upper]) / 2 for block in ordered])
