"""When a basis is drawn anew."""

import torch

from lfl.client.layout import ParameterLayout
from lfl.subspace import CoordinateSubspace
from lfl.subspace.coordinate import CoordinateBasis
from lfl.subspace.refresh import RefreshedBasis

LAYOUT = ParameterLayout(("x",), (torch.Size([1000]),), torch.float64)


def bases(refresh_every: int, seed: int = 0) -> RefreshedBasis:
    return RefreshedBasis(CoordinateSubspace(10), refresh_every, LAYOUT, seed, torch.device("cpu"))


def chosen(basis: object) -> list[int]:
    assert isinstance(basis, CoordinateBasis)
    return basis.index.tolist()


def test_a_basis_is_kept_for_so_many_rounds() -> None:
    refreshed = bases(3)
    assert [refreshed.period(number) for number in range(1, 8)] == [0, 0, 0, 1, 1, 1, 2]
    assert refreshed.at(1) is refreshed.at(3)
    assert refreshed.at(4) is refreshed.of_period(1)
    assert chosen(refreshed.at(4)) != chosen(refreshed.at(3))


def test_one_that_has_been_let_go_is_drawn_again_alike() -> None:
    refreshed = bases(1)
    first = refreshed.at(1)
    for number in (2, 3):
        refreshed.at(number)
    assert refreshed.at(1) is not first  # the last two are kept
    assert chosen(refreshed.at(1)) == chosen(first)
    assert chosen(bases(1).at(2)) == chosen(refreshed.at(2))
    assert chosen(bases(1, seed=1).at(2)) != chosen(refreshed.at(2))
