"""What every subspace must satisfy, and the rule for ``rank``."""

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn

from lfl.client.layout import ParameterLayout
from lfl.randomness import generator
from lfl.subspace import (
    Basis,
    CoordinateSubspace,
    DenseSubspace,
    HadamardSubspace,
    IdentitySubspace,
    LayerwiseSubspace,
    Subspace,
)
from lfl.subspace.base import orthonormal_rows

CPU = torch.device("cpu")
# A convolution, a normalisation layer, biases, and a matrix of one row.
NET = nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.Linear(6, 7), nn.Linear(7, 1, bias=False))
LAYOUT = ParameterLayout.of_parameters(NET)

SUBSPACES = {
    "dense": DenseSubspace(20),
    "dense-full": DenseSubspace(1.0),
    "layerwise-ratio": LayerwiseSubspace(0.3),
    "layerwise-count": LayerwiseSubspace(3),
    "layerwise-vectors": LayerwiseSubspace(0.3, whole_vectors=False),
    "layerwise-full": LayerwiseSubspace(1.0),
    "coordinate": CoordinateSubspace(0.2),
    "coordinate-full": CoordinateSubspace(1.0),
    "hadamard": HadamardSubspace(31),
    "hadamard-full": HadamardSubspace(1.0),
    "identity": IdentitySubspace(),
}

RANDOM = [name for name in SUBSPACES if name not in ("identity", "layerwise-full", "coordinate-full")]
every_subspace = pytest.mark.parametrize("subspace", SUBSPACES.values(), ids=SUBSPACES)


def draw(subspace: Subspace, *address: int | str, dtype: torch.dtype = torch.float64) -> Basis:
    return subspace.draw(LAYOUT, address or (0, "subspace", 1), CPU, dtype)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrix(basis: Basis) -> Tensor:
    return basis.lift(torch.eye(basis.rank, dtype=torch.float64))


@every_subspace
def test_rows_are_orthonormal(subspace: Subspace) -> None:
    p = matrix(draw(subspace))
    torch.testing.assert_close(p @ p.mT, torch.eye(len(p), dtype=torch.float64), atol=1e-12, rtol=0)


@every_subspace
def test_project_undoes_lift(subspace: Subspace) -> None:
    basis = draw(subspace)
    z = normal(basis.rank)
    torch.testing.assert_close(basis.project(basis.lift(z)), z, atol=1e-12, rtol=0)


@every_subspace
def test_lift_is_the_adjoint_of_project(subspace: Subspace) -> None:
    basis = draw(subspace)
    x, z = normal(basis.dim), normal(basis.rank, seed=1)
    torch.testing.assert_close(basis.lift(z) @ x, z @ basis.project(x), atol=1e-11, rtol=0)


@every_subspace
def test_projector_is_idempotent_and_shortens(subspace: Subspace) -> None:
    basis = draw(subspace)
    x = normal(basis.dim)
    once = basis.lift(basis.project(x))
    torch.testing.assert_close(basis.lift(basis.project(once)), once, atol=1e-12, rtol=0)
    assert once.norm() <= x.norm() * (1 + 1e-12)


@every_subspace
def test_check_tells_the_rank_before_drawing(subspace: Subspace) -> None:
    basis = draw(subspace)
    assert basis.dim == LAYOUT.dim
    assert basis.rank == subspace.check(LAYOUT) == len(basis.project(normal(basis.dim)))


@every_subspace
def test_equal_addresses_give_equal_bits(subspace: Subspace) -> None:
    state = torch.get_rng_state()
    torch.manual_seed(7)
    first = matrix(draw(subspace))
    torch.manual_seed(8)
    assert torch.equal(first, matrix(draw(subspace)))
    torch.set_rng_state(state)


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("address", [(1, "subspace", 1), (0, "other", 1), (0, "subspace", 2)])
def test_addresses_differ(name: str, address: tuple[int | str, ...]) -> None:
    first, second = draw(SUBSPACES[name]), draw(SUBSPACES[name], *address)
    x = normal(LAYOUT.dim)
    assert not torch.allclose(first.project(x), second.project(x))


@every_subspace
def test_leading_dimensions_are_rows(subspace: Subspace) -> None:
    basis = draw(subspace)
    x, z = normal(2, 3, basis.dim), normal(2, 3, basis.rank, seed=1)
    rows_x = torch.stack([basis.project(row) for row in x.flatten(0, 1)]).unflatten(0, (2, 3))
    rows_z = torch.stack([basis.lift(row) for row in z.flatten(0, 1)]).unflatten(0, (2, 3))
    torch.testing.assert_close(basis.project(x), rows_x, atol=1e-12, rtol=0)
    torch.testing.assert_close(basis.lift(z), rows_z, atol=1e-12, rtol=0)


@every_subspace
def test_no_rows_and_strided_rows(subspace: Subspace) -> None:
    basis = draw(subspace)
    assert basis.project(normal(0, basis.dim)).shape == (0, basis.rank)
    assert basis.lift(normal(0, basis.rank)).shape == (0, basis.dim)
    wide = normal(3, 2 * basis.dim)
    torch.testing.assert_close(
        basis.project(wide[:, ::2]), basis.project(wide[:, ::2].contiguous()), atol=1e-12, rtol=0
    )


@every_subspace
def test_float32_is_the_rounded_float64(subspace: Subspace) -> None:
    basis, rounded = draw(subspace), draw(subspace, dtype=torch.float32)
    x, z = normal(2, basis.dim), normal(2, basis.rank)
    projected, lifted = rounded.project(x.float()), rounded.lift(z.float())
    assert projected.dtype == lifted.dtype == torch.float32
    torch.testing.assert_close(projected.double(), basis.project(x), atol=1e-5, rtol=0)
    torch.testing.assert_close(lifted.double(), basis.lift(z), atol=1e-5, rtol=0)


@every_subspace
def test_the_argument_is_left_alone(subspace: Subspace) -> None:
    basis = draw(subspace)
    x, z = normal(2, basis.dim), normal(2, basis.rank)
    basis.project(x), basis.lift(z)
    assert torch.equal(x, normal(2, basis.dim))
    assert torch.equal(z, normal(2, basis.rank))


@every_subspace
def test_tensors_that_require_a_gradient_are_accepted(subspace: Subspace) -> None:
    basis = draw(subspace)
    assert basis.project(normal(basis.dim).requires_grad_()).shape == (basis.rank,)
    assert basis.lift(normal(basis.rank).requires_grad_()).shape == (basis.dim,)


@pytest.mark.parametrize("kind", [DenseSubspace, CoordinateSubspace, HadamardSubspace])
def test_the_projector_is_unbiased(kind: type[Subspace]) -> None:
    """E[P^T P] = (R/D) I.

    An entry of P^T P lies in [-1, 1] and has a variance of at most (R/D)(1 - R/D) < 1/4, so the mean of 4000 draws has
    a standard deviation below 0.008; the tolerance is five of them.
    """
    layout = ParameterLayout(("x",), (torch.Size([7]),), torch.float64)
    subspace = kind(2)  # type: ignore[call-arg]  # all three take a rank
    total = torch.zeros(7, 7, dtype=torch.float64)
    for i in range(4000):
        p = matrix(subspace.draw(layout, (0, i), CPU, torch.float64))
        total += p.mT @ p
    torch.testing.assert_close(total / 4000, 2 / 7 * torch.eye(7, dtype=torch.float64), atol=0.04, rtol=0)


def test_the_signs_of_qr_are_fixed() -> None:
    """A = Q R with P = Q^T gives P A = R: upper triangular, with a positive diagonal."""
    gaussian = torch.randn(9, 4, generator=generator(0, "qr"), dtype=torch.float64)
    r = orthonormal_rows(4, 9, generator(0, "qr")) @ gaussian
    torch.testing.assert_close(r, r.triu(), atol=1e-12, rtol=0)
    assert (r.diagonal() > 0).all()


KINDS = [DenseSubspace, CoordinateSubspace, HadamardSubspace, LayerwiseSubspace]
FLAT = [DenseSubspace, CoordinateSubspace, HadamardSubspace]


def matrix_layout(*shape: int) -> ParameterLayout:
    return ParameterLayout(("x",), (torch.Size(shape),), torch.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [0, -3])
def test_counts_below_one_are_refused(kind: type, rank: int) -> None:
    with pytest.raises(ValueError, match=rf"`rank={rank}` must be at least 1 \(a number of coordinates\)"):
        kind(rank)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [0.0, -0.5, float("nan"), float("inf")])
def test_ratios_outside_the_unit_interval_are_refused(kind: type, rank: float) -> None:
    with pytest.raises(ValueError, match=rf"`rank={rank}` is a float and so a ratio: it must be in \(0, 1\]\.$"):
        kind(rank)


@pytest.mark.parametrize("kind", KINDS)
def test_a_float_count_is_refused_with_the_int_to_write(kind: type) -> None:
    with pytest.raises(ValueError, match=r"`rank=20.0` is a float .* write the int 20\."):
        kind(20.0)


@pytest.mark.parametrize("kind", FLAT)
def test_a_count_above_the_dimension_is_refused(kind: type) -> None:
    subspace: Subspace = kind(13)
    for attempt in (
        lambda: subspace.check(matrix_layout(3, 4)),
        lambda: subspace.draw(matrix_layout(3, 4), (0,), torch.device("cpu"), torch.float32),
    ):
        with pytest.raises(ValueError, match=r"`rank=13` must not exceed D=12, .* int of at most 12, or a float"):
            attempt()


@pytest.mark.parametrize("kind", FLAT)
@pytest.mark.parametrize(("rank", "count"), [(1, 1), (12, 12), (1.0, 12), (0.25, 3), (0.2, 2), (0.001, 1)])
def test_counts_and_ratios(kind: type, rank: int | float, count: int) -> None:
    assert kind(rank).check(matrix_layout(3, 4)) == count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("text", "value"), [("1", 1), ("1.0", 1.0), ("0.2", 0.2), ("20", 20)])
def test_the_command_line_keeps_ints_and_floats_apart(kind: type, text: str, value: int | float) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--subspace", type=Subspace)
    path = f"{kind.__module__}.{kind.__name__}"
    rank = parser.parse_args([f"--subspace={path}", f"--subspace.rank={text}"]).subspace.init_args.rank
    assert (rank, type(rank)) == (value, type(value))
