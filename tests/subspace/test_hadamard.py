import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lfl.client.layout import ParameterLayout
from lfl.subspace import HadamardSubspace
from lfl.subspace.hadamard import HadamardBasis

CPU = torch.device("cpu")


def draw(dim: int, rank: int | float, *address: int) -> HadamardBasis:
    layout = ParameterLayout(("x",), (torch.Size([dim]),), torch.float64)
    return HadamardSubspace(rank).draw(layout, address, CPU, torch.float64)


def test_hadamard_matrix_of_size_four() -> None:
    """With ``E_1 = I``, no choice, and 1 at one place of E_2 alone, P is an outer product of two rows of H."""
    rows = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    turned = torch.tensor([1, 2, 3, 0])
    for place in range(4):
        signs = torch.stack([torch.ones(4), torch.eye(4)[place]])
        basis = HadamardBasis(signs, turned, chosen=torch.arange(4))
        assert torch.equal(basis.project(torch.eye(4)).mT, torch.outer(rows[place], rows[turned[place]]))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.floats(0.01, 1.0), st.integers(0, 10**6))
def test_rows_are_orthonormal_for_any_dimension(dim: int, ratio: float, seed: int) -> None:
    basis = draw(dim, ratio, seed)
    p = basis.lift(torch.eye(basis.rank, dtype=torch.float64))
    torch.testing.assert_close(p @ p.mT, torch.eye(basis.rank, dtype=torch.float64), atol=1e-12, rtol=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000).map(lambda n: 2 * n + 1), st.integers(0, 10**6))
def test_odd_dimensions_at_full_rank_are_rotations(dim: int, seed: int) -> None:
    basis = draw(dim, 1.0, seed)
    x = torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(basis.lift(basis.project(x)), x, atol=1e-11, rtol=0)
    torch.testing.assert_close(basis.project(x).norm(), x.norm(), atol=0, rtol=1e-12)


def test_large_blocks_are_the_recursive_transform() -> None:
    """A block of 2^13 as Kronecker factors, against the butterfly H_2n = [[H_n, H_n], [H_n, -H_n]] / sqrt 2."""

    def butterfly(v: torch.Tensor) -> torch.Tensor:
        if len(v) == 1:
            return v
        a, b = v.chunk(2)
        return torch.cat([butterfly(a + b), butterfly(a - b)]) / 2**0.5

    draws = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (2, 2**13), generator=draws).double() * 2 - 1
    permutation, chosen = (torch.randperm(2**13, generator=draws)[:count] for count in (2**13, 100))
    x = torch.randn(2**13, generator=draws, dtype=torch.float64)
    expected = butterfly(signs[1] * butterfly(signs[0] * x)[permutation])[chosen]
    torch.testing.assert_close(HadamardBasis(signs, permutation, chosen).project(x), expected)


def test_the_pieces_mix() -> None:
    """D = 1025 = 1024 + 1: the energy of each unit vector is spread by the second round, even from the piece of one."""
    basis = draw(1025, 1.0, 3)
    for i in (0, 511, 1024):
        unit = torch.zeros(1025, dtype=torch.float64)
        unit[i] = 1.0
        assert basis.project(unit).square().max() < 0.05
