"""Where parameters lie in a vector."""

import pytest
import torch
from torch import nn
from worlds import mlp

from lfl.client.layout import ParameterLayout


def test_layout_views_share_memory_and_keep_leading_dimensions() -> None:
    layout = ParameterLayout.of_parameters(mlp())
    flat = torch.arange(2.0 * layout.dim).reshape(2, layout.dim)
    views = layout.views(flat)
    views["backbone.head.bias"][1, 0] = -1
    assert flat[1, layout.slices["backbone.head.bias"].start] == -1
    assert torch.equal(layout.flatten(views), flat)
    assert layout.spans(layout.names) == [slice(0, layout.dim)]
    assert layout.spans(layout.names[1:2]) == [layout.slices[layout.names[1]]]
    assert int(layout.select("*bias").sum()) == 12 + 4
    assert layout.layers == {"backbone.features.1": slice(0, 780), "backbone.head": slice(780, 832)}
    with pytest.raises(ValueError, match="'nothing' matches no parameter; the names are: backbone"):
        layout.select("nothing")


def test_layout_refuses_nothing_to_train_and_mixed_types() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        ParameterLayout.of_parameters(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match=r"share one dtype, found \['torch.float32', 'torch.float64'\]"):
        ParameterLayout.of_parameters(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()]))
