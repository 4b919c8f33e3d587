"""Quadratics to be followed by hand, and a look at the gradients that are asked for."""

import torch
from torch import Tensor
from worlds import Quadratic, QuadraticData

from lfl.callbacks import FederatedCallback
from lfl.data.partition import IndexSets, Partition


def quadratic_data(curvature: list[list[float]], centre: list[list[float]]) -> QuadraticData:
    """One client a row: ``1/2 (y - b)^T A (y - b)`` with diagonal A."""
    data = QuadraticData(num_clients=len(curvature), dim=len(curvature[0]))
    data.curvature, data.centre = (torch.tensor(rows, dtype=torch.float64) for rows in (curvature, centre))
    return data


class RepeatedData(QuadraticData):
    """Client i has ``sizes[i]`` equal examples; ``uniform`` is the optimum of the mean over clients.

    In batches of one, an epoch is so many steps; ``optimum`` counts every example once.
    """

    def __init__(self, sizes: list[int], dim: int = 12, batch_size: int = 1) -> None:
        super().__init__(len(sizes), dim)
        self.uniform = self.optimum
        owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        self.curvature, self.centre = self.curvature[owner], self.centre[owner]
        sets = IndexSets(torch.arange(len(owner)), torch.tensor([0, *sizes]).cumsum(0))
        self.partition, self.batch_size = Partition(sets, sets), batch_size


class Linear(Quadratic):
    """``F_i(y) = <b_i, y>``: the same gradient everywhere."""

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (batch[1] * self.point).sum(dim=-1).mean()


class Spy(FederatedCallback):
    """First in a stack: keeps the points at which a gradient was asked for, and the gradients."""

    def __init__(self) -> None:
        self.points: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def wrap_gradient(self, cohort, gradient):
        def seen(params, step):
            found = gradient(params, step)
            self.points.append(params.clone())
            self.gradients.append(found.clone())
            return found

        return seen
