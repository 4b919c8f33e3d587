"""Residual networks: the small ones for CIFAR and the large ones for ImageNet.

K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385
"""

from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from lfl.models.backbone import Backbone, norm_layer

ResNetNorm = Literal["batch", "group"]  # without normalisation these networks do not train
Shortcut = Literal["A", "B"]


class CifarResNet(Backbone):
    """The residual network of depth 6n+2 for small images (section 4.2), with n blocks each of 16, 32, 64 channels.

    Args:
        depth: number of layers with weights: 20, 32, 44, 56 or 110 in the paper.
        in_channels: channels of an image.
        num_classes: number of logits.
        norm: ``"batch"``, as in the paper, or ``"group"``, with which clients can be trained together by vmap.
        groups: number of groups of GroupNorm.
        shortcut: the shortcut of a block with more output than input channels. ``"A"``, as in the paper on CIFAR:
            every second pixel, and zeros for the new channels. ``"B"``: a 1x1 convolution (2,752 more parameters).

    Raises:
        ValueError: ``depth`` is not 6n+2.

    Example:
        >>> sum(p.numel() for p in CifarResNet(depth=20).parameters())
        269722
    """

    def __init__(
        self,
        depth: int = 20,
        in_channels: int = 3,
        num_classes: int = 10,
        norm: ResNetNorm = "batch",
        groups: int = 2,
        shortcut: Shortcut = "A",
    ) -> None:
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"`depth={depth}` of CifarResNet must be 6n+2: 8, 14, 20, 32, 44, 56, 110, ...")
        layers: list[nn.Module] = [_conv(in_channels, 16, 3), norm_layer(16, norm, groups), nn.ReLU()]
        channels = 16
        for width in (16, 32, 64):
            for _ in range((depth - 2) // 6):
                layers.append(_CifarBlock(channels, width, norm, groups, shortcut))
                channels = width
        super().__init__(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 64, num_classes)


class ResNet(Backbone):
    """ResNet-18, 34 or 50 as torchvision builds them.

    Args:
        depth: number of layers with weights.
        in_channels: channels of an image.
        num_classes: number of logits.
        stem: ``"imagenet"``, a 7x7 convolution with stride 2 and max pooling, as in the paper; ``"cifar"``, a 3x3
            convolution with stride 1 and no pooling, for images of 32 pixels.
        norm: ``"batch"``, as in the paper, or ``"group"``, with which clients can be trained together by vmap, and
            which accepts a batch of one small image.
        groups: number of groups of GroupNorm.

    Example:
        >>> import torch
        >>> ResNet(depth=18, num_classes=100, norm="group")(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 100])
    """

    def __init__(
        self,
        depth: Literal[18, 34, 50] = 18,
        in_channels: int = 3,
        num_classes: int = 10,
        stem: Literal["cifar", "imagenet"] = "imagenet",
        norm: ResNetNorm = "batch",
        groups: int = 2,
    ) -> None:
        from torchvision.models import resnet  # slow to import, and only this network needs it

        build = {18: resnet.resnet18, 34: resnet.resnet34, 50: resnet.resnet50}[depth]
        features = build(norm_layer=partial(norm_layer, norm=norm, groups=groups))
        num_features = features.fc.in_features
        features.fc = nn.Identity()
        if stem == "cifar":
            features.conv1 = _conv(in_channels, 64, 3)
            features.maxpool = nn.Identity()
        elif in_channels != 3:
            features.conv1 = _conv(in_channels, 64, 7, stride=2)
        super().__init__(features, num_features, num_classes)


class _CifarBlock(nn.Module):
    def __init__(self, channels: int, width: int, norm: ResNetNorm, groups: int, shortcut: Shortcut) -> None:
        super().__init__()
        grows = width > channels
        self.branch = nn.Sequential(
            _conv(channels, width, 3, stride=2 if grows else 1),
            norm_layer(width, norm, groups),
            nn.ReLU(),
            _conv(width, width, 3),
            norm_layer(width, norm, groups),
        )
        self.shortcut: nn.Module = nn.Identity()
        if grows and shortcut == "A":
            self.shortcut = _ZeroChannels(width - channels)
        elif grows:
            self.shortcut = nn.Sequential(_conv(channels, width, 1, stride=2), norm_layer(width, norm, groups))

    @override
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


class _ZeroChannels(nn.Module):
    """Takes every second pixel and appends ``extra`` channels of zeros: the shortcut "A"."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    @override
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra))


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution without bias that keeps the image size (divided by the stride), initialised as in He et al.

    The initialisation is that of "Delving Deep into Rectifiers", ICCV 2015.
    """
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
