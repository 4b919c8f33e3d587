"""Operations of evaluations that are slow, or have no rule, where many clients are evaluated together under vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lfl.client.batched_ops import LAYERS, is_batched


class EvaluationOps(TorchFunctionMode):
    """Context for evaluations under vmap, without gradients.

    Layers that vmap cannot batch are computed from operations that it can (``batched_ops``). torch's max pooling also
    finds where each maximum was, for a gradient that there is not: on a CPU the same numbers, to the bit, are several
    times faster as maxima of slices. Convolutions with weights for each client would be one grouped convolution, which
    takes up to twice as long on a CPU as one client after another: they are that, with all of a client's examples.
    """

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = LAYERS.get(func)
        if layer is not None:
            with self:
                return layer(*args, **(kwargs or {}))
        if func in _CONVOLUTIONS and is_batched():
            return _convolution(func, *args, **(kwargs or {}))
        if func in _POOLING:
            return _max_pool2d(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Convolution(torch.autograd.Function):
    """A convolution that under vmap is taken by one client after another where they have weights of their own."""

    @staticmethod
    def forward(
        function: Callable[..., Tensor], input: Tensor, weight: Tensor, bias: Tensor | None, *options: Any
    ) -> Tensor:
        """Compute it."""
        return function(input, weight, bias, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: there is no gradient."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        function: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *options: Any,
    ) -> tuple[Tensor, int]:
        """Compute it for a batch of any of its operands."""
        _, of_input, of_weight, of_bias = in_dims[:4]
        if of_weight is None and of_bias is None:  # a batch of batches of examples
            input = input.movedim(of_input, 0)
            joined = _convolution(function, input.flatten(0, 1), weight, bias, *options)
            return joined.unflatten(0, input.shape[:2]), 0
        rows = (
            _convolution(
                function,
                _picked(input, of_input, row),
                _picked(weight, of_weight, row),
                None if bias is None else _picked(bias, of_bias, row),
                *options,
            )
            for row in range(info.batch_size)
        )
        return (torch.stack(list(rows)) if is_batched() else _joined(rows, info.batch_size)), 0


def _convolution(
    function: Callable[..., Tensor], input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **named: Any
) -> Tensor:
    options = [*args, *(named.get(name, default) for name, default in _OPTIONS[len(args) :])]
    if input.is_cuda or not is_batched():  # the latter within the outermost vmap's rule
        return function(input, weight, bias, *options)
    if input.dim() < weight.dim():  # one example, without the dimension of examples
        alone: Tensor = _Convolution.apply(function, input[None], weight, bias, *options)[0]
        return alone
    found: Tensor = _Convolution.apply(function, input, weight, bias, *options)
    return found


def _joined(rows: Iterator[Tensor], count: int) -> Tensor:
    """The rows as one tensor; each is copied while it is in the processor's cache, and its memory used again."""
    first = next(rows)
    joined = first.new_empty(count, *first.shape)
    joined[0] = first
    for place, row in enumerate(rows, 1):
        joined[place] = row
    return joined


def _picked(tensor: Tensor, dim: int | None, row: int) -> Tensor:
    return tensor if dim is None else tensor.select(dim, row)


def _max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """``F.max_pool2d``; the arguments are its own."""
    height, width = _pair(kernel_size)
    steps = (height, width) if stride is None or stride == [] else _pair(stride)
    is_plain = not ceil_mode and not return_indices and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
    # Windows side by side. Of overlapping ones slices would read every number several times.
    if not is_plain or steps != (height, width) or height * width > 9 or input.is_cuda:
        with torch._C.DisableTorchFunction():
            pool: Callable[..., Any] = F.max_pool2d
            return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    rows, columns = (size // step * step for size, step in zip(input.shape[-2:], steps, strict=True))
    input = input[..., :rows, :columns]
    # Columns first, whose slices lie closer together.
    input = reduce(torch.maximum, [input[..., place::width] for place in range(width)])
    return reduce(torch.maximum, [input[..., place::height, :] for place in range(height)])


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, list | tuple) and len(value) == 2 else (_one(value), _one(value))
    return int(first), int(second)


def _one(value: Any) -> int:
    return int(value[0]) if isinstance(value, list | tuple) else int(value)


_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_OPTIONS: list[tuple[str, Any]] = [("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1)]
_POOLING = {F.max_pool2d, torch.max_pool2d}
