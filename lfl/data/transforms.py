"""Transforms of whole batches: one tensor operation for the examples of all clients.

A transform draws no random numbers itself. It declares how many uniform numbers it needs per example and is given them,
so that augmentation depends on the example's key only, never on the other examples of the batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lfl.randomness import fold, uniform


class BatchTransform(ABC):
    """Base class of transforms of a batch of inputs.

    A subclass sets ``draws``, the number of uniform random numbers that it needs for each example. With 0 it is
    deterministic, and may be applied once to the whole data set instead of to each batch.
    """

    draws: ClassVar[int] = 0

    @abstractmethod
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Transform a batch of inputs.

        Args:
            x: inputs, (examples, ...).
            u: random numbers in [0, 1), (examples, draws); row i is for example i.
        """

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class RandomCrop(BatchTransform):
    """Pads an image on all four sides and crops it to its old size at a random place.

    Args:
        padding: pixels added on each side, at least 1; 4 is usual for CIFAR.
        fill: value of the added pixels.

    Example:
        >>> image = torch.arange(9.0).reshape(1, 1, 3, 3)
        >>> RandomCrop(padding=1)(image, torch.tensor([[0.0, 0.5]])).squeeze()
        tensor([[0., 0., 0.],
                [0., 1., 2.],
                [3., 4., 5.]])
    """

    draws: ClassVar[int] = 2

    def __init__(self, padding: int = 4, fill: float = 0.0) -> None:
        if padding < 1:
            raise ValueError(f"`padding={padding}` of RandomCrop must be at least 1.")
        self.padding = padding
        self.fill = fill

    @override
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError(f"RandomCrop needs images [examples, channels, height, width], got {list(x.shape)}.")
        count, channels, height, width = x.shape
        padded = F.pad(x, (self.padding,) * 4, value=self.fill)
        # Each example has a window of its own, so slicing will not do: one `gather` takes all windows from the
        # flattened images, by the numbers of their pixels.
        corner = (u * (2 * self.padding + 1)).long()
        rows = corner[:, :1] + torch.arange(height, device=x.device)
        columns = corner[:, 1:] + torch.arange(width, device=x.device)
        pixels = (rows.unsqueeze(2) * padded.shape[3] + columns.unsqueeze(1)).reshape(count, 1, height * width)
        return padded.flatten(2).gather(2, pixels.expand(-1, channels, -1)).reshape(x.shape)


class RandomHorizontalFlip(BatchTransform):
    """Mirrors an image along its last dimension with probability ``p``.

    Args:
        p: probability, from 0 to 1.
    """

    draws: ClassVar[int] = 1

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"`p={p}` of RandomHorizontalFlip must lie between 0 and 1.")
        self.p = p

    @override
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        is_flipped = (u < self.p).reshape(-1, *[1] * (x.dim() - 1))
        return torch.where(is_flipped, x.flip(-1), x)


class Normalize(BatchTransform):
    """Subtracts ``mean`` and divides by ``std``, for each channel (dimension 1).

    Args:
        mean: one number per channel, or a single one for all channels.
        std: standard deviations, as many as ``mean``; all positive.
    """

    def __init__(self, mean: list[float], std: list[float]) -> None:
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise ValueError(f"`mean={mean}` and `std={std}` of Normalize need one number per channel, `std` positive.")
        self.mean = mean
        self.std = std

    @override
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        del u
        if not x.is_floating_point():
            raise ValueError(f"Normalize got {x.dtype} inputs; put ToFloat before it.")
        if len(self.mean) not in (1, x.shape[1]):
            raise ValueError(f"`mean={self.mean}` of Normalize is for {len(self.mean)} channels, got {x.shape[1]}.")
        shape = (-1, *[1] * (x.dim() - 2))
        return (x - x.new_tensor(self.mean).reshape(shape)) / x.new_tensor(self.std).reshape(shape)


class ToFloat(BatchTransform):
    """Converts bytes 0..255 to float32 in [0, 1]; floating-point inputs stay as they are."""

    @override
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        del u
        if x.is_floating_point():
            return x
        if x.dtype != torch.uint8:
            raise ValueError(f"ToFloat needs uint8 inputs, got {x.dtype}.")
        return x.to(torch.float32) / 255


class Pipeline:
    """Applies transforms in order and draws the random numbers for each.

    Transform number t draws from the t-th key derived from an example's key. Its numbers therefore do not change if the
    transforms before it are applied beforehand, once, to the whole data set.

    Args:
        transforms: transforms in order.
        start: number of the first transform.
    """

    def __init__(self, transforms: Sequence[BatchTransform], start: int = 0) -> None:
        self.transforms = tuple(transforms)
        self.start = start

    @property
    def is_random(self) -> bool:
        """Whether a transform is random, so that a batch needs keys."""
        return any(transform.draws for transform in self.transforms)

    def split(self) -> "tuple[Pipeline, Pipeline]":
        """Split into the transforms before the first random one, and the rest."""
        random = [number for number, transform in enumerate(self.transforms) if transform.draws]
        cut = random[0] if random else len(self.transforms)
        return Pipeline(self.transforms[:cut], self.start), Pipeline(self.transforms[cut:], self.start + cut)

    def __call__(self, x: Tensor, keys: Tensor | None) -> Tensor:
        """Transform a batch of inputs.

        Args:
            x: inputs, (examples, ...).
            keys: one int64 key per example, (examples,); may be None if no transform is random.

        Raises:
            ValueError: a transform is random, and there are no keys.
        """
        for number, transform in enumerate(self.transforms, self.start):
            if not transform.draws:
                u = torch.empty(len(x), 0, device=x.device)
            elif keys is None:
                raise ValueError(f"{transform!r} is random: the batch needs one key for each example, got none.")
            else:
                u = uniform(fold(keys, number), transform.draws)
            x = transform(x, u)
        return x
