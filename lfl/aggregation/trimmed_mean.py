"""The mean of every coordinate without its largest and smallest values.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, https://arxiv.org/abs/1803.01498, Definition 2.
"""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.gathering import GatheringAggregator, blocks
from lfl.arguments import check_number, count_of_share


class TrimmedMean(GatheringAggregator):
    """The mean of each coordinate without the ``k = ceil(share M)`` largest and the k smallest of its M values.

    As long as at most k participants are Byzantine, every coordinate lies between those of honest clients. With share 0
    it is the uniform mean, to rounding. All clients count alike. Memory: M D numbers. Where updates that are not finite
    leave too few rows to take k from both ends, the middle one or two are left, as of a median.

    Args:
        share: beta in [0, 0.5), of the participants, that are left out at each end.

    Raises:
        ValueError: the share is out of range.
    """

    def __init__(self, share: float = 0.2) -> None:
        super().__init__("uniform")
        check_number("TrimmedMean", "share", share, least=0)
        if share >= 0.5:
            raise ValueError(f"`share={share}` of TrimmedMean is left out at each end, and must be less than 0.5.")
        self.share = share

    @override
    def check(self, num_participants: int | None) -> None:
        if num_participants is not None and 2 * (left_out := self._count(num_participants)) >= num_participants:
            raise ValueError(
                f"`share={self.share}` of TrimmedMean leaves nothing of {num_participants} participants, without "
                f"{left_out} at each end: lower it, or let more clients take part."
            )

    @override
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        del weights
        left_out = min(self._count(len(rows)), (len(rows) - 1) // 2)
        kept = slice(left_out, len(rows) - left_out)
        return torch.cat([block.sort(dim=0).values[kept].mean(dim=0) for block in blocks(rows)])

    def _count(self, num_participants: int) -> int:
        """Values that are left out at each end (k)."""
        return count_of_share(self.share, num_participants)
