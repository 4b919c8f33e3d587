"""A dense random basis of the whole parameter vector, for small models."""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.client.layout import ParameterLayout
from lfl.randomness import generator
from lfl.subspace.base import Basis, Subspace, check_rank, count_rank, orthonormal_rows

_MAX_ENTRIES = 2 * 10**8  # 0.8 GB in float32, and drawn in float64


class DenseSubspace(Subspace):
    """A uniformly distributed subspace: QR of a Gaussian matrix. Memory D*R, time D*R^2.

    Args:
        rank: number of coordinates (int), or their share of D (float in (0, 1]).

    Raises:
        ValueError: ``rank`` is neither.

    Example:
        >>> layout = ParameterLayout.of_parameters(torch.nn.Linear(3, 2))
        >>> basis = DenseSubspace(4).draw(layout, (0, "doc"), torch.device("cpu"), torch.float64)
        >>> torch.allclose(basis.project(basis.lift(torch.eye(4).double())), torch.eye(4).double())
        True
    """

    def __init__(self, rank: int | float) -> None:
        self.rank = check_rank(rank)

    @override
    def check(self, layout: ParameterLayout) -> int:
        rank = count_rank(self.rank, layout.dim)
        if layout.dim * rank > _MAX_ENTRIES:
            raise ValueError(
                f"DenseSubspace with `rank={self.rank}` on D={layout.dim} parameters would store a matrix of "
                f"{layout.dim * rank:.1e} numbers, more than {_MAX_ENTRIES:.0e}: use LayerwiseSubspace, "
                f"HadamardSubspace or CoordinateSubspace, or a rank of at most {_MAX_ENTRIES // layout.dim}."
            )
        return rank

    @override
    def draw(
        self, layout: ParameterLayout, address: tuple[int | str, ...], device: torch.device, dtype: torch.dtype
    ) -> "DenseBasis":
        rows = orthonormal_rows(self.check(layout), layout.dim, generator(*address))
        return DenseBasis(rows.to(device, dtype))


class DenseBasis(Basis):
    """A basis that is stored as a matrix.

    Args:
        matrix: P, (rank, dim), with orthonormal rows.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.rank, self.dim = matrix.shape

    @override
    def project(self, x: Tensor) -> Tensor:
        return x @ self.matrix.mT

    @override
    def lift(self, z: Tensor) -> Tensor:
        return z @ self.matrix
