"""Random operations inside a client's loss, such as dropout, computed from the client's own key.

torch draws dropout masks from one global generator, so they would depend on which clients are trained together. In the
mode ``ClientRandom``, torch's random operations are computed from a key by ``lfl.randomness``. One client trained alone
and a cohort trained under vmap, with a key per client, get the same numbers.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lfl.client.batched_ops import LAYERS
from lfl.randomness import fold, normal, random_bits, uniform

NextKey = Callable[[], Tensor]


class ClientRandom(TorchFunctionMode):
    """Context in which torch's random operations are computed from a key and the number of the draw.

    Layers that vmap cannot batch are computed from operations that it can (``batched_ops``), in which dropout is seen.

    Args:
        key: the client's key for a step, a 64-bit integer without dimensions.

    Attributes:
        key: the key.
        draws: number of draws so far.
        layers: number of such layers so far.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.draws = 0
        self.layers = 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Functions that are not in the table, such as the in-place `normal_`, still draw from the global generator.
        # `ClientModel.probe` notices that, and such a module is trained one client at a time.
        layer = LAYERS.get(func)
        if layer is not None:
            self.layers += 1
            with self:  # what it calls may draw
                return layer(*args, **(kwargs or {}))
        replacement = _REPLACEMENTS.get(func)
        # A generator of the user's own has draws of its own.
        if replacement is None or (kwargs and kwargs.get("generator") is not None):
            return func(*args, **(kwargs or {}))
        return replacement(self.next_key, *args, **(kwargs or {}))

    def next_key(self) -> Tensor:
        """The key of the next draw; each draw has its own, so that two dropout layers have different masks."""
        self.draws += 1
        return fold(self.key, self.draws)


def _dropout(key: NextKey, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _drop(key, input, input.shape, p, training)


def _feature_dropout(
    key: NextKey, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Dropout of whole channels: the mask is (examples, channels, 1, ...)."""
    return _drop(key, input, input.shape[:2] + (1,) * (input.dim() - 2), p, training)


def _drop(key: NextKey, input: Tensor, shape: tuple[int, ...], p: float, training: bool) -> Tensor:
    if not training or p == 0.0:
        return input
    if p == 1.0:  # as torch does; the division below would give 0 / 0
        return input * 0.0
    keep = uniform(key(), math.prod(shape)).reshape(shape) >= p
    return input * (keep.to(input.dtype) / (1.0 - p))


def _shape(size: Any) -> tuple[int, ...]:
    """The shape of ``torch.rand``'s arguments, which may be ``(2, 3)`` or ``2, 3``."""
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _rand(key: NextKey, *size: Any, **options: Any) -> Tensor:
    shape = _shape(options.pop("size", None) or size)
    return _uniform(key, shape, options)


def _rand_like(key: NextKey, input: Tensor, **options: Any) -> Tensor:
    return _uniform(key, input.shape, {"dtype": input.dtype, **options})


def _randn(key: NextKey, *size: Any, **options: Any) -> Tensor:
    shape = _shape(options.pop("size", None) or size)
    return _normal(key, shape, options)


def _randn_like(key: NextKey, input: Tensor, **options: Any) -> Tensor:
    return _normal(key, input.shape, {"dtype": input.dtype, **options})


def _bernoulli(key: NextKey, input: Tensor, **options: Any) -> Tensor:
    return (uniform(key(), input.numel()).reshape(input.shape) < input).to(input.dtype)


def _randperm(key: NextKey, n: int, **options: Any) -> Tensor:
    return random_bits(key(), n).argsort()


def _uniform(key: NextKey, shape: tuple[int, ...], options: dict[str, Any]) -> Tensor:
    return uniform(key(), math.prod(shape), options.get("dtype") or torch.get_default_dtype()).reshape(shape)


def _normal(key: NextKey, shape: tuple[int, ...], options: dict[str, Any]) -> Tensor:
    return normal(key(), math.prod(shape), options.get("dtype") or torch.get_default_dtype()).reshape(shape)


_REPLACEMENTS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.dropout: _dropout,
    F.dropout1d: _feature_dropout,
    F.dropout2d: _feature_dropout,
    F.dropout3d: _feature_dropout,
    torch.dropout: lambda key, input, p, train: _dropout(key, input, p, train),
    torch.rand: _rand,
    torch.rand_like: _rand_like,
    torch.randn: _randn,
    torch.randn_like: _randn_like,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    torch.randperm: _randperm,
}
