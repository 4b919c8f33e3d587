"""The convolutional network of the FedAvg paper.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629, section 3.
"""

from typing import Literal

from torch import nn

from lfl.models.backbone import Backbone, Norm, norm_layer


class McMahanCNN(Backbone):
    """Two 5x5 convolutions (32, 64 channels), each with ReLU and 2x2 max pooling, then 512 ReLU units.

    Args:
        in_channels: channels of an image.
        image_size: height and width of an image, in pixels.
        num_classes: number of logits.
        padding: zeros around the input of each convolution. 2 keeps the size, as the paper's 1,663,370 parameters on
            MNIST require; 0 gives the variant often called FedAvgCNN (582,026 parameters).
        norm: normalisation after each convolution; the paper has none.
        groups: number of groups of GroupNorm.
        dropout: probability of zeroing one of the 512 features.

    Raises:
        ValueError: the image is too small.

    Example:
        >>> sum(p.numel() for p in McMahanCNN().parameters())
        1663370
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: int = 28,
        num_classes: int = 10,
        padding: Literal[0, 2] = 2,
        norm: Norm = "none",
        groups: int = 2,
        dropout: float = 0.0,
    ) -> None:
        side = image_size
        for _ in range(2):
            side = (side + 2 * padding - 4) // 2  # a 5x5 convolution takes 4 pixels, and pooling halves the rest
        if side < 1:
            smallest = 4 if padding else 16
            raise ValueError(f"`image_size={image_size}` with `padding={padding}` must be at least {smallest}.")
        features = nn.Sequential(
            nn.Conv2d(in_channels, 32, 5, padding=padding),
            norm_layer(32, norm, groups),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=padding),
            norm_layer(64, norm, groups),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * side * side, 512),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        super().__init__(features, 512, num_classes)
