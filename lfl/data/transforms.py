"""Transforms of whole batches: one tensor operation for the examples of all clients.

A transform draws nothing itself. It says how many uniform numbers it needs for an example and is handed them, so that
augmentation depends on the example's address alone, never on the batch in which it stands.
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
    """Base of the transforms of a batch of inputs.

    A subclass sets ``draws``, the uniform numbers that it needs for each example; 0 makes it deterministic, and then it
    may be applied once to the whole data set instead of once to each batch.
    """

    draws: ClassVar[int] = 0

    @abstractmethod
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """The transformed inputs.

        Args:
            x: inputs, (examples, ...).
            u: numbers in [0, 1), (examples, draws); row i is example i's, and no other's.
        """

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class RandomCrop(BatchTransform):
    """Pads the image on its four sides and cuts a window of the old size out of it, anywhere.

    Args:
        padding: pixels added on each side, at least 1; 4 is the usual choice for CIFAR.
        fill: the value of the added pixels, in the units of the input.

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
        corner = (u * (2 * self.padding + 1)).long()
        rows = corner[:, :1] + torch.arange(height, device=x.device)
        columns = corner[:, 1:] + torch.arange(width, device=x.device)
        pixels = (rows.unsqueeze(2) * padded.shape[3] + columns.unsqueeze(1)).reshape(count, 1, height * width)
        return padded.flatten(2).gather(2, pixels.expand(-1, channels, -1)).reshape(x.shape)


class RandomHorizontalFlip(BatchTransform):
    """Mirrors an image (its last dimension) with probability ``p``.

    Args:
        p: the probability, in [0, 1].
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
    """Subtracts ``mean`` and divides by ``std``, channel by channel (dimension 1).

    Args:
        mean: one number for each channel, or a single one for all.
        std: the same, all positive.
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
    """Bytes 0..255 as float32 in [0, 1]; inputs that are floating-point already stay as they are."""

    @override
    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        del u
        if x.is_floating_point():
            return x
        if x.dtype != torch.uint8:
            raise ValueError(f"ToFloat needs uint8 inputs, got {x.dtype}.")
        return x.to(torch.float32) / 255


class Pipeline:
    """Transforms in order, with the random numbers that belong to each.

    Transform number t draws from sub-address t of an example's key, so that it does not matter which of the others
    are applied beforehand, once, to the whole data set.

    Args:
        transforms: applied first to last.
        start: number of the first of them.
    """

    def __init__(self, transforms: Sequence[BatchTransform], start: int = 0) -> None:
        self.transforms = tuple(transforms)
        self.start = start

    @property
    def is_random(self) -> bool:
        """Whether a transform needs keys."""
        return any(t.draws for t in self.transforms)

    def split(self) -> "tuple[Pipeline, Pipeline]":
        """What comes before the first random transform, and the rest from there on."""
        random = [i for i, t in enumerate(self.transforms) if t.draws]
        cut = random[0] if random else len(self.transforms)
        return Pipeline(self.transforms[:cut], self.start), Pipeline(self.transforms[cut:], self.start + cut)

    def __call__(self, x: Tensor, keys: Tensor | None) -> Tensor:
        """The transformed inputs.

        Args:
            x: inputs, (examples, ...).
            keys: one int64 key an example, (examples,); None will do where nothing is random.

        Raises:
            ValueError: there are random transforms, and no keys.
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
