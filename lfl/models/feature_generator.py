"""FedGen's generator: from noise and a class to a feature vector."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from typing_extensions import override


class FeatureGenerator(nn.Module):
    """A hidden layer with BatchNorm and ReLU, then a linear one, on noise beside the one-hot class.

    It has ``(noise + classes) hidden + 3 hidden + hidden features + features`` parameters.

    Args:
        num_classes: number of classes.
        num_features: length of a feature vector.
        noise: numbers of noise of one vector.
        hidden: width of the hidden layer.

    Example:
        >>> generator = FeatureGenerator(num_classes=10, num_features=32, noise=32, hidden=256)
        >>> sum(p.numel() for p in generator.parameters())
        19744
        >>> generator(torch.rand(5, 32), torch.tensor([0, 1, 2, 3, 3])).shape
        torch.Size([5, 32])
    """

    def __init__(self, num_classes: int, num_features: int, noise: int = 32, hidden: int = 256) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.noise = noise
        self.hidden = nn.Sequential(nn.Linear(noise + num_classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
        self.output = nn.Linear(hidden, num_features)

    @override
    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Features [b, num_features] from noise [b, noise] in [0, 1) and classes [b]."""
        classes = one_hot(labels, self.num_classes).to(noise.dtype)
        features: Tensor = self.output(self.hidden(torch.cat([noise, classes], dim=1)))
        return features
