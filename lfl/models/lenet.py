"""LeNet-5.

Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-Based Learning Applied to Document Recognition", Proceedings of
the IEEE 86(11), 1998, http://yann.lecun.com/exdb/publis/pdf/lecun-98.pdf
"""

from jsonargparse.typing import PositiveInt
from torch import nn

from lfl.models.backbone import Backbone, Norm, norm_layer


class LeNet5(Backbone):
    """Two 5x5 convolutions, each with max pooling, then two layers of units; 61,706 parameters on MNIST.

    As usual today, and unlike the paper, it has ReLU instead of tanh, max pooling, full connections between the
    convolutions, and a linear output. As in the paper, images smaller than 32x32 are padded with zeros to that size.

    Args:
        in_channels: channels of an image.
        image_size: height and width of an image, in pixels; an even number.
        num_classes: number of logits.
        norm: normalisation after each convolution.
        groups: number of groups of GroupNorm.
        channels: of the two convolutions.
        hidden: units of the two layers behind them.
        dropout: share of these units that is dropped in training.

    Raises:
        ValueError: ``image_size`` is odd or not positive.

    Example:
        >>> import torch
        >>> LeNet5(in_channels=3, image_size=32)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: int = 28,
        num_classes: int = 10,
        norm: Norm = "none",
        groups: int = 2,
        channels: tuple[PositiveInt, PositiveInt] = (6, 16),
        hidden: tuple[PositiveInt, PositiveInt] = (120, 84),
        dropout: float = 0.0,
    ) -> None:
        if image_size < 1 or image_size % 2:
            raise ValueError(f"`image_size={image_size}` of LeNet5 must be a positive even number, such as 28 or 32.")
        side = ((max(image_size, 32) - 4) // 2 - 4) // 2  # each 5x5 convolution takes 4 pixels, each pooling halves
        (first, second), (third, last) = channels, hidden
        dropped = [nn.Dropout(dropout)] if dropout else []
        features = nn.Sequential(
            nn.Conv2d(in_channels, first, 5, padding=max(0, 32 - image_size) // 2),
            norm_layer(first, norm, groups),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5),
            norm_layer(second, norm, groups),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * side * side, third),
            nn.ReLU(),
            *dropped,
            nn.Linear(third, last),
            nn.ReLU(),
            *dropped,
        )
        super().__init__(features, last, num_classes)
