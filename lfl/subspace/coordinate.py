"""The cheapest subspace: random coordinates of the parameter vector."""

import torch
from torch import Tensor
from typing_extensions import override

from lfl.client.layout import ParameterLayout
from lfl.randomness import generator
from lfl.subspace.base import Basis, Subspace, check_rank, count_rank


class CoordinateSubspace(Subspace):
    """Bases of R coordinates of the parameter vector, drawn uniformly without replacement.

    Args:
        rank: number of coordinates (int), or their share of D (float in (0, 1]).

    Raises:
        ValueError: ``rank`` is neither.

    Example:
        >>> layout = ParameterLayout.of_parameters(torch.nn.Linear(3, 2))
        >>> basis = CoordinateSubspace(0.5).draw(layout, (0, "doc"), torch.device("cpu"), torch.float32)
        >>> basis.dim, basis.rank, basis.lift(torch.ones(4)).sum().item()
        (8, 4, 4.0)
    """

    def __init__(self, rank: int | float) -> None:
        self.rank = check_rank(rank)

    @override
    def check(self, layout: ParameterLayout) -> int:
        return count_rank(self.rank, layout.dim)

    @override
    def draw(
        self, layout: ParameterLayout, address: tuple[int | str, ...], device: torch.device, dtype: torch.dtype
    ) -> "CoordinateBasis":
        del dtype
        rank = self.check(layout)
        # Sorted, so that memory is read in ascending order; the order of the rows does not change the subspace.
        chosen = torch.randperm(layout.dim, generator=generator(*address))[:rank].sort().values
        return CoordinateBasis(chosen.to(device), layout.dim)


class CoordinateBasis(Basis):
    """A basis whose rows are rows of the identity.

    Args:
        index: the coordinates, (rank,), ascending.
        dim: length of the vectors.
    """

    def __init__(self, index: Tensor, dim: int) -> None:
        self.index = index
        self.dim, self.rank = dim, len(index)

    @override
    def project(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.index)

    @override
    def lift(self, z: Tensor) -> Tensor:
        return z.new_zeros(*z.shape[:-1], self.dim).index_copy_(-1, self.index, z)
