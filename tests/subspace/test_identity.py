"""The whole space."""

import torch

from lfl.client.layout import ParameterLayout
from lfl.subspace import IdentitySubspace


def test_vectors_are_their_own_coordinates() -> None:
    layout = ParameterLayout(("x", "y"), (torch.Size([2, 3]), torch.Size([4])), torch.float64)
    subspace = IdentitySubspace()
    basis = subspace.draw(layout, (0, "a"), torch.device("cpu"), torch.float64)
    assert (subspace.check(layout), basis.rank, basis.dim) == (10, 10, 10)
    rows = torch.randn(3, 10)
    assert basis.project(rows) is rows
    assert basis.lift(rows) is rows
