"""Random coordinates."""

import torch
from torch import nn

from lfl.client.layout import ParameterLayout
from lfl.subspace import (
    Basis,
    CoordinateSubspace,
    Subspace,
)

CPU = torch.device("cpu")
# A convolution, a normalisation layer, biases, and a matrix of one row.
NET = nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.Linear(6, 7), nn.Linear(7, 1, bias=False))
LAYOUT = ParameterLayout.of_parameters(NET)


def draw(subspace: Subspace, *address: int | str, dtype: torch.dtype = torch.float64) -> Basis:
    return subspace.draw(LAYOUT, address or (0, "subspace", 1), CPU, dtype)


def test_coordinates_keep_their_order() -> None:
    values = draw(CoordinateSubspace(50)).project(torch.arange(LAYOUT.dim))
    assert torch.equal(values, values.unique(sorted=True))
    assert len(values) == 50
