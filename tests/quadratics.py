"""Quadratics to be followed by hand, and a look at the gradients that are asked for."""

import torch
from torch import Tensor
from worlds import Quadratic, QuadraticData

from lfl.callbacks import FederatedCallback


def quadratic_data(curvature: list[list[float]], centre: list[list[float]]) -> QuadraticData:
    """One client a row: ``1/2 (y - b)^T A (y - b)`` with diagonal A."""
    data = QuadraticData(num_clients=len(curvature), dim=len(curvature[0]))
    data.curvature, data.centre = (torch.tensor(rows, dtype=torch.float64) for rows in (curvature, centre))
    return data


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
