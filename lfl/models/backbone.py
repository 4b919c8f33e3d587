"""The base class of backbones (features, then a linear head) and their normalisation layers."""

from typing import Literal

from torch import Tensor, nn
from typing_extensions import override

Norm = Literal["batch", "group", "none"]


class Backbone(nn.Module):
    """Base class of backbones: networks that compute ``head(features(x))``.

    ``head`` and ``features`` have these names in every backbone, so that a method which keeps the head on the clients,
    or regularises the features, can name them (``"*.head.*"``) without knowing the network.

    Args:
        features: maps a batch ``(examples, ...)`` to feature vectors ``(examples, num_features)``.
        num_features: length of a feature vector.
        num_classes: number of logits.
    """

    def __init__(self, features: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(num_features, num_classes)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """The logits ``(examples, num_classes)``."""
        logits: Tensor = self.head(self.features(x))
        return logits


def norm_layer(channels: int, norm: Norm, groups: int = 2, spatial: bool = True) -> nn.Module:
    """Make a normalisation layer.

    Args:
        channels: number of channels, or of features after a linear layer.
        norm: ``"batch"``, ``"group"`` or ``"none"``. BatchNorm updates its running statistics in place, which vmap
            cannot do, and they depend on one client's data; GroupNorm has neither problem.
        groups: number of groups of GroupNorm.
        spatial: whether inputs are images ``(examples, channels, height, width)``, not vectors
            ``(examples, channels)``.

    Raises:
        ValueError: ``groups`` does not divide ``channels``.
    """
    if norm == "none":
        return nn.Identity()
    if norm == "batch":
        return nn.BatchNorm2d(channels) if spatial else nn.BatchNorm1d(channels)
    if groups < 1 or channels % groups:
        raise ValueError(
            f"`groups={groups}` must divide the {channels} channels of every normalised layer; 2 is usual."
        )
    return nn.GroupNorm(groups, channels)
