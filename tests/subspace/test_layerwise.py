import pytest
import torch
from torch import nn

from lfl.client.layout import ParameterLayout
from lfl.models import CifarResNet
from lfl.subspace import LayerwiseSubspace
from lfl.subspace.layerwise import LayerwiseBasis

CPU = torch.device("cpu")


def draw(subspace: LayerwiseSubspace, layout: ParameterLayout) -> LayerwiseBasis:
    return subspace.draw(layout, (0, "test"), CPU, torch.float64)


def layout_of(**shapes: tuple[int, ...]) -> ParameterLayout:
    return ParameterLayout(tuple(shapes), tuple(torch.Size(s) for s in shapes.values()), torch.float64)


def test_on_one_matrix_p_acts_on_the_rows() -> None:
    basis = draw(LayerwiseSubspace(3), layout_of(x=(5, 4)))
    # P itself: the first columns of the matrices that have e_i as their first column of coordinates.
    z = torch.zeros(3, 3, 4, dtype=torch.float64)
    z[range(3), range(3), 0] = 1
    p = basis.lift(z.flatten(1)).unflatten(1, (5, 4))[:, :, 0]
    torch.testing.assert_close(p @ p.mT, torch.eye(3, dtype=torch.float64))
    x = torch.arange(20.0, dtype=torch.float64).reshape(5, 4)
    torch.testing.assert_close(basis.project(x.flatten()).reshape(3, 4), p @ x)


def test_layers_are_projected_by_themselves() -> None:
    layout = layout_of(weight=(6, 2, 3, 3), bias=(6,), head=(4, 6))
    basis = draw(LayerwiseSubspace(0.5), layout)
    assert basis.rank == 3 * 18 + 6 + 2 * 6
    x = torch.zeros(layout.dim, dtype=torch.float64)
    x[layout.slices["head"]] = 1.0
    z = basis.project(x)
    assert not z[: 3 * 18 + 6].any()
    assert z[3 * 18 + 6 :].any()


def test_whole_vectors_keep_their_values() -> None:
    layout = layout_of(weight=(4, 3), bias=(4,), scale=(4,), shift=(4,), head=(4, 4))
    x = torch.arange(float(layout.dim), dtype=torch.float64)
    z = draw(LayerwiseSubspace(2), layout).project(x)
    assert torch.equal(z[2 * 3 : 2 * 3 + 12], x[12:24])


def test_vectors_can_be_projected_too() -> None:
    layout = layout_of(weight=(4, 3), bias=(4,), temperature=())
    assert LayerwiseSubspace(0.5, whole_vectors=False).check(layout) == 2 * 3 + 2 + 1


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0.5, 5 * 3 + 1 * 10 + 10),  # rows 10 and 1 give 5 and max(1, round(0.5)) = 1
        (0.01, 1 * 3 + 1 * 10 + 10),
        (1.0, 10 * 3 + 1 * 10 + 10),
        (4, 4 * 3 + 1 * 10 + 10),  # the one-row layer is left whole
        (10, 10 * 3 + 1 * 10 + 10),
    ],
)
def test_rank_of_each_layer(rank: int | float, expected: int) -> None:
    assert LayerwiseSubspace(rank).check(layout_of(a=(10, 3), bias=(10,), b=(1, 10))) == expected


def test_full_rank_is_the_identity() -> None:
    layout = layout_of(a=(10, 3), bias=(10,), b=(2, 10))
    x = torch.arange(float(layout.dim), dtype=torch.float64)
    basis = draw(LayerwiseSubspace(1.0), layout)
    assert torch.equal(basis.project(x), x)
    assert torch.equal(basis.lift(x), x)


def test_a_layers_basis_depends_on_its_name_only() -> None:
    alone, among = layout_of(b=(6, 2)), layout_of(a=(6, 2), b=(6, 2))
    z = torch.arange(4.0, dtype=torch.float64)
    lifted = draw(LayerwiseSubspace(2), among).lift(torch.cat([z, z]))
    assert torch.equal(lifted[12:], draw(LayerwiseSubspace(2), alone).lift(z))
    assert not torch.allclose(lifted[:12], lifted[12:])


def test_a_deep_network() -> None:
    net = CifarResNet(depth=20, norm="group")
    layout = ParameterLayout.of_parameters(net)
    basis = draw(LayerwiseSubspace(0.25), layout)
    whole = sum(p.numel() for p in net.parameters() if p.dim() == 1)
    weights = sum(p.numel() for m in net.modules() if isinstance(m, nn.Conv2d) for p in m.parameters())
    assert basis.rank == weights // 4 + 2 * 64 + whole  # round(0.25 * 10) = 2 rows of the head
    z = torch.randn(2, basis.rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(basis.project(basis.lift(z)), z)


def test_a_count_above_the_rows_of_every_layer_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"`rank=11` of LayerwiseSubspace exceeds .* \(at most 10; D=40\).* at most 10"
    ):
        LayerwiseSubspace(11).check(layout_of(a=(10, 3), bias=(10,)))


def test_a_model_without_matrices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no weight with two dimensions.*`whole_vectors=False`"):
        draw(LayerwiseSubspace(0.5), layout_of(x=(10,)))
