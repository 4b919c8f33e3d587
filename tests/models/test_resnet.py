"""Residual networks."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lfl.models import Backbone, CifarResNet, ResNet


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_buffers_of_batchnorm() -> None:
    """ResNet-18 has 4,800 normalised channels, ResNet-50 has 26,560; each has a running mean and a variance."""
    for depth, floats in ((18, 9_600), (50, 53_120)):
        assert sum(b.numel() for b in ResNet(depth=depth).buffers() if b.is_floating_point()) == floats


def test_option_a_takes_every_second_pixel_and_adds_zero_channels() -> None:
    block = CifarResNet(depth=8).features[4]
    x = torch.rand(1, 16, 4, 4)
    shortcut = block.shortcut(x)
    assert shortcut.shape == (1, 32, 2, 2)
    assert torch.equal(shortcut[:, :16], x[:, :, ::2, ::2])
    assert not shortcut[:, 16:].any()


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda: CifarResNet(depth=20), 269_722),
        (lambda: CifarResNet(depth=56), 853_018),
        (lambda: CifarResNet(depth=110), 1_727_962),
        (lambda: CifarResNet(depth=110, shortcut="B", norm="group"), 1_730_714),
        (lambda: ResNet(depth=18), 11_181_642),
        (lambda: ResNet(depth=18, num_classes=100, norm="group"), 11_227_812),
        (lambda: ResNet(depth=18, num_classes=200), 11_279_112),
        (lambda: ResNet(depth=18, stem="cifar"), 11_173_962),
        (lambda: ResNet(depth=50), 23_528_522),
        (lambda: ResNet(depth=50, num_classes=100), 23_712_932),
    ],
)
def test_parameter_counts(build: Callable[[], Backbone], count: int) -> None:
    assert num_parameters(build()) == count


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CifarResNet(depth=18), r"`depth=18` of CifarResNet must be 6n\+2"),
    ],
)
def test_errors(build: Callable[[], Backbone], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
