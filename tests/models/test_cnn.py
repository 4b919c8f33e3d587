"""McMahan's CNN."""

import torch
from torch import nn

from lfl.models import McMahanCNN


def test_parameters_of_the_papers_cnn() -> None:
    for num_classes, expected in ((10, 878_538), (100, 924_708)):
        model = McMahanCNN(in_channels=3, image_size=32, num_classes=num_classes, padding=0)
        assert sum(p.numel() for p in model.parameters()) == expected


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_counts_per_layer_of_the_fedavg_cnn() -> None:
    """5*5*1*32 + 32, 5*5*32*64 + 64, 7*7*64*512 + 512, 512*10 + 10."""
    weighted = [m for m in McMahanCNN().modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [num_parameters(m) for m in weighted] == [832, 51_264, 1_606_144, 5_130]


def test_smallest_images_are_accepted() -> None:
    assert McMahanCNN(image_size=16, padding=0)(torch.zeros(1, 1, 16, 16)).shape == (1, 10)
    assert McMahanCNN(image_size=4)(torch.zeros(1, 1, 4, 4)).shape == (1, 10)
