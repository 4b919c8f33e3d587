"""Fully connected networks."""

from pathlib import Path

import pytest
import torch
from both_engines import trained_by_both
from torch import nn

from lfl.models import MLP


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 199_210),
        ({"in_features": 784, "hidden": []}, 7_850),
        ({"hidden": [512, 256, 64]}, 550_346),  # SRPFL's
    ],
)
def test_parameter_counts(settings: dict, count: int) -> None:
    assert sum(p.numel() for p in MLP(**settings).parameters()) == count


def test_layers_in_order() -> None:
    """Linear, norm, ReLU and dropout for each hidden layer; a linear head."""
    network = MLP(in_features=6, hidden=[5, 4], num_classes=3, norm="batch", dropout=0.5)
    kinds = [nn.Flatten, *[nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout] * 2]
    assert [type(layer) for layer in network.features] == kinds
    shapes = [tuple(layer.weight.shape) for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert shapes == [(5, 6), (4, 5), (3, 4)]


def test_a_layer_by_hand() -> None:
    """``relu(2 - 3) = 0`` and ``relu(2 + 3) = 5``; the head adds them up."""
    network = MLP(in_features=2, hidden=[2], num_classes=1)
    hidden, head = (layer for layer in network.modules() if isinstance(layer, nn.Linear))
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    hidden.weight.data = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    head.weight.data = torch.ones(1, 2)
    assert network(torch.tensor([[[2.0, 3.0]]])).tolist() == [[5.0]]


def test_groups_that_do_not_divide_a_layer() -> None:
    with pytest.raises(ValueError, match=r"`groups=0` must divide the 8 channels"):
        MLP(4, [8], norm="group", groups=0)


def test_both_engines_train_it_alike(tmp_path: Path) -> None:
    before, one, other = trained_by_both(lambda: MLP(6, [5, 4, 3], 2), torch.rand(16, 6).double(), 2, tmp_path)
    torch.testing.assert_close(one, other)
    assert (one != before).any()
