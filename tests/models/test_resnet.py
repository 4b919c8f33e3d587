"""Residual networks."""

import torch

from lfl.models import CifarResNet, ResNet


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
