"""Krum and Multi-Krum: the updates that are nearest to their neighbours.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent", NeurIPS 2017, https://arxiv.org/abs/1703.02757, sections 4 and 5.
"""

import torch
from jsonargparse.typing import NonNegativeInt, PositiveInt
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.gathering import GatheringAggregator, blocks, weighted_sum
from lfl.arguments import check_number, count_of_share


class Krum(GatheringAggregator):
    """The mean of the ``selected`` updates with the least scores; one is Krum, more are Multi-Krum.

    The score of a client is the sum of the squared distances of its update from the ``M - f - 2`` nearest ones, f of M
    participants being Byzantine. Of equal scores the lowest id comes first. All clients count alike. Memory: M D
    numbers; time: M^2 D.

    It needs ``M > 2 f + 2``, which is checked before the run where every round has the same number of participants.
    Where fewer report in a round, the nearest ``max(1, M - f - 2)`` count, and at most all others.

    Args:
        byzantine: f: a whole number of participants that may be Byzantine, or a share of them as a float in [0, 0.5),
            rounded up.
        selected: number of updates of which the mean is taken; all of those that there are where there are fewer.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(self, byzantine: NonNegativeInt | float = 0.2, selected: PositiveInt = 1) -> None:
        super().__init__("uniform")
        check_number("Krum", "byzantine", byzantine, least=0)
        check_number("Krum", "selected", selected, least=1, whole=True)
        if isinstance(byzantine, float) and byzantine >= 0.5:
            raise ValueError(
                f"`byzantine={byzantine}` of Krum is a share of the participants and must be less than 0.5; give a "
                "whole number, without a point, for a number of clients."
            )
        self.byzantine = byzantine
        self.selected = selected

    @override
    def check(self, num_participants: int | None) -> None:
        if num_participants is None:
            return
        least = 2 * self._count(num_participants) + 2
        if num_participants <= least:
            raise ValueError(
                f"`byzantine={self.byzantine}` of Krum needs more than 2 f + 2 = {least} participants in a round, of "
                f"which there are {num_participants}: lower it, or let more clients take part."
            )
        if self.selected > num_participants:
            raise ValueError(
                f"`selected={self.selected}` of Krum is more than the {num_participants} participants of a round."
            )

    @override
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        del weights
        count = len(rows)
        distances = squared_distances(rows).fill_diagonal_(torch.inf)
        neighbours = min(max(count - self._count(count) - 2, 1), count - 1)
        scores = distances.sort(dim=1).values[:, :neighbours].sum(dim=1)
        # By ascending id again, so that the sum does not depend on the order of the scores.
        chosen = scores.argsort(stable=True)[: self.selected].sort().values
        shares = torch.full((len(chosen),), 1 / len(chosen), dtype=torch.float64, device=rows.device)
        return weighted_sum(shares, rows[chosen])

    def _count(self, num_participants: int) -> int:
        """Number of Byzantine participants (f)."""
        return count_of_share(self.byzantine, num_participants) if isinstance(self.byzantine, float) else self.byzantine


def squared_distances(rows: Tensor) -> Tensor:
    """``|rows_i - rows_j|^2`` [M, M], in float64."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in blocks(rows):
        # Of differences: by products of rows, small distances between long updates would be lost.
        total += torch.cdist(block, block, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total
