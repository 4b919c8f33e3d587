"""LeNet-5."""

import functools
from pathlib import Path

import pytest
import torch
from both_engines import trained_by_both

from lfl.models import LeNet5

COLOURED = {"in_channels": 3, "image_size": 32}
SRPFL_10 = {**COLOURED, "channels": (64, 64), "hidden": (120, 64)}
SRPFL_100 = {**COLOURED, "channels": (64, 128), "hidden": (256, 128), "num_classes": 100, "dropout": 0.6}


@pytest.mark.parametrize(
    ("settings", "count"), [({}, 61_706), (COLOURED, 62_006), (SRPFL_10, 307_842), (SRPFL_100, 1_075_044)]
)
def test_parameter_counts(settings: dict, count: int) -> None:
    assert sum(p.numel() for p in LeNet5(**settings).parameters()) == count


@pytest.mark.parametrize(("image_size", "side"), [(28, 5), (20, 5), (32, 5), (64, 13)])
def test_small_images_are_padded_to_32_pixels(image_size: int, side: int) -> None:
    """Two convolutions of 5 x 5 and two poolings: ((n - 4) / 2 - 4) / 2."""
    network = LeNet5(image_size=image_size)
    x = torch.zeros(2, 1, image_size, image_size)
    for layer in network.features[:8]:
        x = layer(x)
    assert x.shape == (2, 16, side, side)
    assert network(torch.zeros(2, 1, image_size, image_size)).shape == (2, 10)


def test_units_are_dropped_behind_both_layers() -> None:
    kinds = [type(layer).__name__ for layer in LeNet5(dropout=0.6).features]
    assert kinds[-6:] == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout"]
    assert "Dropout" not in [type(layer).__name__ for layer in LeNet5().features]


def test_odd_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`image_size=27` of LeNet5 must be a positive even number"):
        LeNet5(image_size=27)


def test_both_engines_train_it_alike_with_dropout(tmp_path: Path) -> None:
    inputs = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    build = functools.partial(LeNet5, image_size=8, num_classes=2, channels=(2, 3), hidden=(5, 4), dropout=0.6)
    before, one, other = trained_by_both(build, inputs, 2, tmp_path)
    torch.testing.assert_close(one, other)
    assert (one != before).any()
