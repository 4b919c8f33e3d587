"""The base of aggregators that need the updates of all clients at once, such as medians."""

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import override

from lfl.aggregation.aggregator import Aggregator

_BLOCK = 2**22  # numbers, 32 MiB of float64


class GatheringAggregator(Aggregator):
    """Base of aggregators of rows: a matrix [M, n] of the updates of a round's M participants, by ascending id.

    A process fills the rows of its own clients, whenever they come; the sum over processes has them all. Every process
    then computes the aggregate of the same matrix, so that the result is the same, bit for bit, on any number of them.

    It costs memory: M D numbers; with several processes M D float64s in each of them, sent and received besides.
    """

    decoded = True

    @abstractmethod
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The aggregate [n], float64, of rows [M, n] with their weights [M] (float64), by ascending id.

        M may be less than the number of participants, and as small as 1: updates that were not finite are left out.
        """

    @override
    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add the only clients of a round."""
        self.add_clients(rows, weights, torch.arange(len(rows)), len(rows))

    @override
    def add_clients(self, rows: Tensor, weights: Tensor, places: Tensor, num_participants: int) -> None:
        if not self.sums:
            self.sums = {
                "rows": rows.new_zeros(num_participants, rows.shape[1]),
                "weights": rows.new_zeros(num_participants, dtype=torch.float64),
            }
        places = places.to(rows.device)
        self.sums["rows"][places] = rows
        self.sums["weights"][places] = weights.to(rows.device)

    @override
    def result(self) -> Tensor:
        rows, weights = self.sums["rows"], self.sums["weights"]
        reported = weights > 0
        if not bool(reported.all()):
            rows, weights = rows[reported], weights[reported]
        return self.combine(rows, weights)


def blocks(rows: Tensor) -> Iterator[Tensor]:
    """Blocks [M, b] of the columns of ``rows`` [M, n], float64: the whole in float64 would be twice as large again."""
    for block in rows.split(max(1, _BLOCK // len(rows)), dim=1):
        # A copy, laid out in the same way wherever the rows are from: products then round in the same way.
        yield block.to(torch.float64, copy=True, memory_format=torch.contiguous_format)


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """``sum_i weights_i rows_i`` [n], in float64."""
    return torch.cat([weights @ block for block in blocks(rows)])


def squared_norms(rows: Tensor) -> Tensor:
    """``|rows_i|^2`` [M], in float64."""
    return torch.stack([block.square().sum(dim=1) for block in blocks(rows)]).sum(dim=0)
