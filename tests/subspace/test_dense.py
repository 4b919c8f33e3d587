"""Dense bases."""

import pytest
import torch

from lfl.client.layout import ParameterLayout
from lfl.subspace import DenseSubspace


def matrix_layout(*shape: int) -> ParameterLayout:
    return ParameterLayout(("x",), (torch.Size(shape),), torch.float32)


def test_a_dense_basis_of_a_large_network_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`rank=0.1` on D=11181642 .* 1.3e\+13 numbers.*use LayerwiseSubspace.*rank of at most 17\."
    ):
        DenseSubspace(0.1).check(matrix_layout(11181642))


def test_rows_are_orthonormal_and_drawn_by_their_address() -> None:
    bases = [DenseSubspace(3).draw(matrix_layout(8), (0, i), torch.device("cpu"), torch.float64) for i in (1, 1, 2)]
    rows = [basis.lift(torch.eye(3, dtype=torch.float64)) for basis in bases]
    torch.testing.assert_close(rows[0] @ rows[0].mT, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-14)
    assert torch.equal(rows[0], rows[1])
    assert not torch.allclose(rows[0], rows[2])
