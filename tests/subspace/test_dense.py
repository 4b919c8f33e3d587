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
