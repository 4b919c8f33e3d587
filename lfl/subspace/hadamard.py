"""The subsampled randomised Hadamard transform: a dense subspace without a stored matrix.

N. Ailon, B. Chazelle, "The Fast Johnson-Lindenstrauss Transform and Approximate Nearest Neighbors", SIAM Journal on
Computing 39(1), 2009; J. A. Tropp, "Improved Analysis of the Subsampled Randomized Hadamard Transform", Advances in
Adaptive Data Analysis 3, 2011, https://arxiv.org/abs/1011.1595
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lfl.client.layout import ParameterLayout
from lfl.randomness import generator
from lfl.subspace.base import Basis, Subspace, check_rank, count_rank

_MAX_FACTOR_BITS = 6  # a Hadamard matrix is applied as Kronecker factors of at most 64 x 64


class HadamardSubspace(Subspace):
    """R random rows of a random orthogonal transform, for any D, in O(D log D) time and O(D) memory.

    Hadamard matrices exist for powers of two. Padding the vector to one would make the rows no longer orthogonal;
    instead the vector is split into blocks whose sizes are the powers of two that sum to D. A second transform, after a
    random permutation, mixes the blocks: ``P = S H E_2 Q H E_1`` with random signs E, a block-diagonal orthonormal
    Hadamard matrix H, a random permutation Q, and a random selection S of rows.

    Args:
        rank: number of coordinates (int), or their share of D (float in (0, 1]).

    Raises:
        ValueError: ``rank`` is neither.

    Example:
        >>> layout = ParameterLayout.of_parameters(torch.nn.Linear(5, 2, bias=False))
        >>> basis = HadamardSubspace(7).draw(layout, (0, "doc"), torch.device("cpu"), torch.float64)
        >>> torch.allclose(basis.project(basis.lift(torch.eye(7).double())), torch.eye(7).double())
        True
    """

    def __init__(self, rank: int | float) -> None:
        self.rank = check_rank(rank)

    @override
    def check(self, layout: ParameterLayout) -> int:
        return count_rank(self.rank, layout.dim)

    @override
    def draw(
        self, layout: ParameterLayout, address: tuple[int | str, ...], device: torch.device, dtype: torch.dtype
    ) -> "HadamardBasis":
        dim = layout.dim
        rank = self.check(layout)
        random = generator(*address)
        # The order of these draws is part of the address: another order is another basis.
        signs = torch.randint(0, 2, (2, dim), generator=random, dtype=torch.int8).mul_(2).sub_(1)
        permutation = torch.randperm(dim, generator=random)
        chosen = torch.randperm(dim, generator=random)[:rank].sort().values
        return HadamardBasis(signs.to(device, dtype), permutation.to(device), chosen.to(device))


class HadamardBasis(Basis):
    """The basis ``P = S H E_2 Q H E_1``, applied factor by factor and never stored as a matrix.

    Args:
        signs: the diagonals of E_1 and E_2, (2, dim), each entry 1 or -1.
        permutation: Q as an index, (dim,).
        chosen: S as an index, (rank,).
    """

    def __init__(self, signs: Tensor, permutation: Tensor, chosen: Tensor) -> None:
        self._signs = signs
        self._permutation = permutation
        self._chosen = chosen
        self.dim, self.rank = len(permutation), len(chosen)
        # The binary digits of D, largest first: 13 = 8 + 4 + 1.
        self._blocks = [1 << bit for bit in reversed(range(self.dim.bit_length())) if self.dim >> bit & 1]
        self._factors = {block: _factors(block, signs) for block in self._blocks}

    @override
    def project(self, x: Tensor) -> Tensor:
        mixed = self._transform(x * self._signs[0]).index_select(-1, self._permutation)
        return self._transform(mixed * self._signs[1]).index_select(-1, self._chosen)

    @override
    def lift(self, z: Tensor) -> Tensor:
        # P^T = E_1 H Q^T E_2 H S^T: H and E are symmetric, and the transpose of selecting entries is scattering them.
        spread = z.new_zeros(*z.shape[:-1], self.dim).index_copy_(-1, self._chosen, z)
        mixed = self._transform(spread) * self._signs[1]
        return self._transform(torch.empty_like(mixed).index_copy_(-1, self._permutation, mixed)) * self._signs[0]

    def _transform(self, x: Tensor) -> Tensor:
        """Compute H x, block by block."""
        pieces = zip(torch.split(x, self._blocks, dim=-1), self._blocks, strict=True)
        return torch.cat([_kronecker(piece, self._factors[block]) for piece, block in pieces], dim=-1)


def _kronecker(x: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Compute ``(A_1 kron A_2 kron ...) x`` for small symmetric matrices A_i; x itself if there are none."""
    # Each factor acts on one digit of the index: of the last factor entries are neighbours, of the one before they are
    # `stride` apart.
    *lead, size = x.shape
    stride = 1
    for matrix in reversed(factors):
        rows = len(matrix)
        if stride == 1:  # one large product (A is symmetric), where the general case would make many of one column
            x = (x.reshape(*lead, size // rows, rows) @ matrix).flatten(-2)
        else:
            x = (matrix @ x.reshape(*lead, size // (rows * stride), rows, stride)).flatten(-3)
        stride *= rows
    return x


def _factors(block: int, like: Tensor) -> list[Tensor]:
    """Orthonormal Hadamard matrices of nearly equal sizes whose Kronecker product has size ``block``."""
    bits = block.bit_length() - 1
    # Few factors of up to 64 x 64 are matrix products, and faster than log2(block) butterfly steps over the vector.
    count = math.ceil(bits / _MAX_FACTOR_BITS)
    return [_hadamard((bits + i) // count, like) for i in range(count)]


def _hadamard(bits: int, like: Tensor) -> Tensor:
    """Sylvester's matrix of size ``2**bits``, divided by the root of its size; symmetric."""
    matrix = like.new_ones(1, 1)
    for _ in range(bits):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(len(matrix))
