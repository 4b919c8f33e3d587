"""Fully connected networks, including logistic regression."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from lfl.models.backbone import Backbone, Norm, norm_layer


class MLP(Backbone):
    """Linear layers with ReLU between them; the defaults are the "2NN" of the FedAvg paper (199,210 parameters).

    Args:
        in_features: number of inputs of one example; images are flattened.
        hidden: widths of the hidden layers; an empty list gives logistic regression.
        num_classes: number of logits.
        norm: normalisation between each hidden linear layer and its ReLU.
        groups: number of groups of GroupNorm.
        dropout: probability of zeroing a unit, after each ReLU.

    Example:
        >>> import torch
        >>> MLP(in_features=4, hidden=[3], num_classes=2)(torch.zeros(5, 2, 2)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        in_features: int = 784,
        hidden: Sequence[int] = (200, 200),
        num_classes: int = 10,
        norm: Norm = "none",
        groups: int = 2,
        dropout: float = 0.0,
    ) -> None:
        widths = [in_features, *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for width, next_width in pairwise(widths):
            layers += [
                nn.Linear(width, next_width),
                norm_layer(next_width, norm, groups, spatial=False),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
        super().__init__(nn.Sequential(*layers), widths[-1], num_classes)
