"""McMahan's CNN."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from both_engines import trained_by_both
from torch import nn

from lfl.models import Backbone, McMahanCNN


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


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda: McMahanCNN(), 1_663_370),
        (lambda: McMahanCNN(in_channels=3, image_size=32), 2_156_490),
        (lambda: McMahanCNN(in_channels=1, image_size=28, padding=0), 582_026),
        (lambda: McMahanCNN(in_channels=3, image_size=32, padding=0), 878_538),
        (lambda: McMahanCNN(in_channels=3, image_size=32, padding=0, num_classes=100), 924_708),
        (lambda: McMahanCNN(in_channels=3, image_size=64, padding=0, num_classes=200), 5_694_600),
    ],
)
def test_parameter_counts(build: Callable[[], Backbone], count: int) -> None:
    assert num_parameters(build()) == count


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: McMahanCNN(image_size=12, padding=0), r"`image_size=12` with `padding=0` must be at least 16"),
        (lambda: McMahanCNN(image_size=3), r"`image_size=3` with `padding=2` must be at least 4"),
        (lambda: McMahanCNN(norm="group", groups=5), r"`groups=5` must divide the 32 channels"),
    ],
)
def test_errors(build: Callable[[], Backbone], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_both_engines_train_it_alike(tmp_path: Path) -> None:
    inputs = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    before, one, other = trained_by_both(lambda: McMahanCNN(image_size=8, num_classes=2), inputs, 2, tmp_path)
    torch.testing.assert_close(one, other)
    assert (one != before).any()
