"""Residual networks."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from both_engines import trained_by_both
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
        (lambda: CifarResNet(depth=32), 464_154),
        (lambda: CifarResNet(depth=44), 658_586),
        (lambda: CifarResNet(depth=56), 853_018),
        (lambda: CifarResNet(depth=110), 1_727_962),
        (lambda: CifarResNet(depth=110, shortcut="B", norm="group"), 1_730_714),
        (lambda: ResNet(depth=18), 11_181_642),
        (lambda: ResNet(depth=18, num_classes=100, norm="group"), 11_227_812),
        (lambda: ResNet(depth=18, num_classes=200), 11_279_112),
        (lambda: ResNet(depth=18, stem="cifar"), 11_173_962),
        (lambda: ResNet(depth=34), 21_289_802),
        (lambda: ResNet(depth=34, norm="group"), 21_289_802),
        (lambda: ResNet(depth=50), 23_528_522),
        (lambda: ResNet(depth=50, num_classes=100), 23_712_932),
        (lambda: ResNet(depth=50, norm="group", num_classes=100), 23_712_932),
        (lambda: CifarResNet(depth=110, num_classes=100), 1_733_812),
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


def test_both_engines_train_it_alike(tmp_path: Path) -> None:
    inputs = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    build = functools.partial(CifarResNet, depth=8, num_classes=2, norm="group")
    before, one, other = trained_by_both(build, inputs, 2, tmp_path)
    torch.testing.assert_close(one, other)
    assert (one != before).any()


def test_clients_with_batchnorm_are_trained_one_at_a_time(tmp_path: Path) -> None:
    inputs = torch.rand(8, 3, 8, 8).double()
    with pytest.raises(
        ValueError, match=r"changes the buffer 'backbone\.features\.1\.running_mean' in place.*GroupNorm"
    ):
        trained_by_both(lambda: CifarResNet(depth=8, num_classes=2), inputs, 2, tmp_path)
