"""The tracked basis against dense decompositions."""

import pytest
import torch
from torch import Tensor

from lfl.subspace import StreamingBasis, StreamingBlocks
from lfl.subspace.streaming import residual_energy


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def projector(rows: Tensor) -> Tensor:
    return rows.mT @ rows


def streamed(vectors: Tensor, max_rank: int, attenuation: float = 1.0) -> StreamingBasis:
    basis = StreamingBasis(max_rank, vectors[0])
    for vector in vectors:
        basis.update(vector, attenuation)
    return basis


@pytest.mark.parametrize("max_rank", [12, 20])
def test_without_truncation_the_stream_is_the_batch(max_rank: int) -> None:
    """Over a spectrum of three decades, at any order of the vectors."""
    vectors = draws(12, 300) * torch.logspace(0, -3, 12, dtype=torch.float64)[:, None]
    left, values, _ = torch.linalg.svd(vectors.mT, full_matrices=False)
    begun = StreamingBasis(max_rank, vectors[0])
    begun.start(vectors)
    for basis in (begun, streamed(vectors, max_rank), streamed(vectors.flip(0), max_rank)):
        torch.testing.assert_close(basis.singular_values, values, rtol=0, atol=1e-10)
        torch.testing.assert_close(projector(basis.rows), left @ left.mT, rtol=0, atol=1e-10)


def test_start_takes_the_leading_pairs() -> None:
    vectors = draws(30, 40)
    left, values, _ = torch.linalg.svd(vectors.mT, full_matrices=False)
    basis = StreamingBasis(5, vectors[0])
    basis.start(vectors)
    torch.testing.assert_close(basis.singular_values, values[:5], rtol=0, atol=1e-10)
    torch.testing.assert_close(projector(basis.rows), left[:, :5] @ left[:, :5].mT, rtol=0, atol=1e-10)


@pytest.mark.parametrize("attenuation", [1.0, 0.7])
def test_500_updates_against_dense_decompositions(attenuation: float) -> None:
    """Each of ``[lambda P Sigma, g]``, with a first vector in ten that is larger; and the sum of squares it leaves."""
    basis = StreamingBasis(6, torch.zeros(40, dtype=torch.float64))
    p, sigma = torch.zeros(40, 0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for number, vector in enumerate(draws(500, 40)):
        vector = vector * (10.0 if number % 10 == 0 else 1.0)
        left, values, _ = torch.linalg.svd(
            torch.cat([attenuation * p * sigma, vector[:, None]], 1), full_matrices=False
        )
        p, sigma, dropped = left[:, :6], values[:6], values[6:]
        expected = (
            attenuation**2 * basis.singular_values.square().sum() + vector.square().sum() - dropped.square().sum()
        )
        basis.update(vector, attenuation)
        torch.testing.assert_close(basis.singular_values.square().sum(), expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(basis.singular_values, sigma, rtol=0, atol=1e-10)
        torch.testing.assert_close(projector(basis.rows), p @ p.mT, rtol=0, atol=1e-10)


def loss_of_orthonormality(dim: int, max_rank: int, updates: int) -> float:
    """Float32, on a spectrum of three decades."""
    random = torch.Generator().manual_seed(0)
    directions = torch.randn(2 * max_rank, dim, generator=random)
    scales = torch.logspace(0, -3, 2 * max_rank)
    basis = StreamingBasis(max_rank, directions[0])
    for _ in range(updates):
        basis.update((torch.randn(2 * max_rank, generator=random) * scales) @ directions)
    rows = basis.rows.double()
    return float((rows @ rows.mT - torch.eye(max_rank)).abs().max())


def test_rows_stay_orthonormal_in_float32() -> None:
    assert loss_of_orthonormality(dim=2000, max_rank=20, updates=300) < 1e-5


@pytest.mark.slow
def test_rows_stay_orthonormal_in_float32_at_size() -> None:
    assert loss_of_orthonormality(dim=20_000, max_rank=50, updates=1000) < 1e-5


def test_projection_is_one() -> None:
    basis, x = streamed(draws(9, 30), 4), draws(5, 30, seed=1)
    once = basis.lift(basis.project(x))
    torch.testing.assert_close(basis.lift(basis.project(once)), once, rtol=0, atol=1e-14)
    assert (once.norm(dim=1) < x.norm(dim=1)).all()
    assert (basis.rank, basis.dim) == (4, 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_streams(dtype: torch.dtype) -> None:
    """Nothing, the same again, what is in the span already, more vectors than dimensions: no NaN, nothing made up."""
    basis = StreamingBasis(3, torch.zeros(5, dtype=dtype))
    basis.start(torch.zeros(4, 5, dtype=dtype))
    basis.update(torch.zeros(5, dtype=dtype))
    assert (basis.rank, basis.dim) == (0, 5)
    assert basis.lift(basis.project(torch.ones(2, 5, dtype=dtype))).tolist() == [[0.0] * 5] * 2
    first, second = torch.tensor([[3.0, 4.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0, 0.0]], dtype=dtype)
    basis.update(first)
    basis.update(first)
    assert basis.rank == 1
    torch.testing.assert_close(basis.singular_values, torch.tensor([50.0**0.5], dtype=dtype))
    basis.update(second)
    basis.update(first - 3 * second)
    assert basis.rank == 2
    before = basis.rows
    basis.update(torch.zeros(5, dtype=dtype), attenuation=0.5)
    assert torch.equal(basis.rows, before)
    for vector in draws(20, 5).to(dtype):
        basis.update(vector * 1e-10, attenuation=0.5)
    assert basis.rank == 3
    assert basis.rows.isfinite().all()
    assert basis.singular_values.isfinite().all()
    narrow = streamed(draws(9, 2).to(dtype), 4)
    assert narrow.rank == 2
    torch.testing.assert_close(projector(narrow.rows), torch.eye(2, dtype=dtype), rtol=0, atol=1e-5)
    repeated = StreamingBasis(4, first)
    repeated.start(torch.stack([first, second, first, second]))
    assert repeated.rank == 2


def test_blocks_are_their_stretches() -> None:
    """Started and updated as each stretch by itself; coordinates one after another."""
    vectors, sizes = draws(6, 20), [12, 5, 3]
    blocks = StreamingBlocks(4, vectors[0], sizes)
    blocks.start(vectors[:5])
    blocks.update(vectors[5], 0.5)
    pieces = vectors.split(sizes, dim=1)
    parts = [StreamingBasis(4, piece[0]) for piece in pieces]
    for part, piece in zip(parts, pieces, strict=True):
        part.start(piece[:5])
        part.update(piece[5], 0.5)
    assert (blocks.rank, blocks.dim) == (4 + 4 + 3, 20)
    x = draws(2, 20, seed=1)
    expected = torch.cat([part.project(piece) for part, piece in zip(parts, x.split(sizes, dim=1), strict=True)], dim=1)
    assert torch.equal(blocks.project(x), expected)
    lifted = torch.cat([part.lift(z) for part, z in zip(parts, expected.split([4, 4, 3], dim=1), strict=True)], dim=1)
    assert torch.equal(blocks.lift(expected), lifted)
    again = StreamingBlocks(4, vectors[0], sizes)
    again.load_state_dict(blocks.state_dict())
    assert torch.equal(again.lift(again.project(x)), lifted)
    assert residual_energy(again.parts) == residual_energy(parts)


def test_energy_that_is_left_out() -> None:
    """The squares of the singular values beyond R, over all; and what the stream has dropped, lambda and all."""
    vectors = draws(8, 30)
    squares = torch.linalg.svdvals(vectors).square()
    begun = StreamingBasis(3, vectors[0])
    assert residual_energy([begun]) == 0.0
    begun.start(vectors)
    assert residual_energy([begun]) == pytest.approx(float(squares[3:].sum() / squares.sum()))
    energy, dropped, basis = 0.0, 0.0, StreamingBasis(3, vectors[0])
    for vector in vectors:
        seen = torch.cat([0.5 * basis.singular_values[:, None] * basis.rows, vector[None]])
        energy = 0.25 * energy + float(vector.square().sum())
        dropped = 0.25 * dropped + float(torch.linalg.svdvals(seen)[3:].square().sum())
        basis.update(vector, 0.5)
    assert residual_energy([basis]) == pytest.approx(dropped / energy)


def test_drawn_rows() -> None:
    vectors = draws(2, 20)
    basis = streamed(vectors, 4)
    basis.draw((3, "test"))
    assert (basis.rank, residual_energy([basis])) == (4, 0.0)
    torch.testing.assert_close(basis.rows @ basis.rows.mT, torch.eye(4).double(), rtol=0, atol=1e-14)
    blocks = StreamingBlocks(4, vectors[0], [17, 3])
    blocks.draw((3, "test"))
    assert (blocks.rank, blocks.dim) == (7, 20)
    assert not torch.equal(blocks.parts[0].rows[:, :3], basis.rows[:, :3])


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 1.82e-12), (torch.float32, 6.42e-6)])
def test_what_counts_as_rounding(dtype: torch.dtype, least: float) -> None:
    """``eps^(3/4)`` of a vector's length outside the span, and of the largest singular value of a batch."""
    first, second = torch.eye(2, dtype=dtype)
    for factor, rank in ((0.99, 1), (1.01, 2)):
        followed = StreamingBasis(2, first)
        followed.update(3 * first)
        followed.update(-2 * (first + factor * least * second))
        begun = StreamingBasis(2, first)
        begun.start(torch.stack([3 * first, 3 * factor * least * second]))
        assert (followed.rank, begun.rank) == (rank, rank)
        for basis in (followed, begun):
            torch.testing.assert_close(basis.rows.abs(), torch.eye(2, dtype=dtype)[:rank], rtol=0, atol=2 * least)
