"""The whole parameter space as a subspace."""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.client.layout import ParameterLayout
from lfl.subspace.base import Basis, Subspace


class IdentitySubspace(Subspace):
    """Draws the identity, which turns a subspace method into the method that it was derived from."""

    @override
    def check(self, layout: ParameterLayout) -> int:
        return layout.dim

    @override
    def draw(
        self, layout: ParameterLayout, address: tuple[int | str, ...], device: torch.device, dtype: torch.dtype
    ) -> "IdentityBasis":
        del address, device, dtype
        return IdentityBasis(layout.dim)


class IdentityBasis(Basis):
    """The basis ``P = I``.

    Args:
        dim: length of the vectors.
    """

    def __init__(self, dim: int) -> None:
        self.dim = self.rank = dim

    @override
    def project(self, x: Tensor) -> Tensor:
        return x

    @override
    def lift(self, z: Tensor) -> Tensor:
        return z
