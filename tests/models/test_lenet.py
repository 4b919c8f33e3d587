"""LeNet-5."""

import pytest
import torch

from lfl.models import LeNet5


@pytest.mark.parametrize(("settings", "count"), [({}, 61_706), ({"in_channels": 3, "image_size": 32}, 62_006)])
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


def test_odd_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`image_size=27` of LeNet5 must be a positive even number"):
        LeNet5(image_size=27)
