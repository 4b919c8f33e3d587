"""The rule for ``rank`` and every error message."""

import pytest
import torch
from jsonargparse import ArgumentParser

from lfl.client.layout import ParameterLayout
from lfl.subspace import CoordinateSubspace, DenseSubspace, HadamardSubspace, LayerwiseSubspace, Subspace

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


def test_a_dense_basis_of_a_large_network_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`rank=0.1` on D=11181642 .* 1.3e\+13 numbers.*use LayerwiseSubspace.*rank of at most 17\."
    ):
        DenseSubspace(0.1).check(matrix_layout(11181642))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("text", "value"), [("1", 1), ("1.0", 1.0), ("0.2", 0.2), ("20", 20)])
def test_the_command_line_keeps_ints_and_floats_apart(kind: type, text: str, value: int | float) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--subspace", type=Subspace)
    path = f"{kind.__module__}.{kind.__name__}"
    rank = parser.parse_args([f"--subspace={path}", f"--subspace.rank={text}"]).subspace.init_args.rank
    assert (rank, type(rank)) == (value, type(value))
