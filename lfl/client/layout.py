"""The layout of a module's parameters, or of its buffers, inside one flat vector.

With C clients trained together, all their parameters are one tensor ``[C, D]``. A ``ParameterLayout`` says where each
parameter lies in ``D``.
"""

import fnmatch
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterLayout:
    """The names and shapes of the tensors that make up one flat vector, in order; it holds no numbers.

    Args:
        names: qualified names, as in ``named_parameters``; a weight that is tied appears once, under its first name.
        shapes: shape of each tensor.
        dtype: floating-point type of all tensors.

    Example:
        >>> layout = ParameterLayout.of_parameters(nn.Linear(3, 2))
        >>> layout.dim, layout.names
        (8, ('weight', 'bias'))
        >>> rows = torch.arange(16.0).reshape(2, 8)
        >>> {name: tuple(view.shape) for name, view in layout.views(rows).items()}
        {'weight': (2, 2, 3), 'bias': (2, 2)}
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype

    @classmethod
    def of_parameters(cls, module: nn.Module, names: Container[str] = ()) -> "ParameterLayout":
        """The layout of the trainable parameters of ``module``. Frozen parameters are constants for all clients.

        Args:
            module: the module.
            names: of parameters that belong to the layout although they are frozen.

        Raises:
            ValueError: no parameter is trainable, or their types differ.
        """
        chosen = {n: p for n, p in module.named_parameters() if p.requires_grad or n in names}
        return cls._of(chosen, "trainable parameters")

    @classmethod
    def of_buffers(cls, module: nn.Module) -> "ParameterLayout":
        """The layout of the floating-point buffers of ``module`` (BatchNorm's running statistics); may be empty."""
        buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
        return cls._of(buffers, "floating-point buffers") if buffers else cls((), (), torch.get_default_dtype())

    @classmethod
    def _of(cls, tensors: Mapping[str, Tensor], what: str) -> "ParameterLayout":
        dtypes = {t.dtype for t in tensors.values()}
        if not dtypes:
            raise ValueError(f"The model has no {what}.")
        if len(dtypes) > 1:
            raise ValueError(f"The model's {what} must share one dtype, found {sorted(map(str, dtypes))}.")
        return cls(tuple(tensors), tuple(t.shape for t in tensors.values()), dtypes.pop())

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each tensor."""
        return tuple(shape.numel() for shape in self.shapes)

    @cached_property
    def dim(self) -> int:
        """Length of the vector (D)."""
        return sum(self.sizes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of the vector that each tensor takes, by name."""
        result = {}
        start = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            result[name] = slice(start, start + size)
            start += size
        return result

    @cached_property
    def layers(self) -> dict[str, slice]:
        """The slice of the vector that each layer takes: the parameters that one submodule has itself, by its name."""
        result: dict[str, slice] = {}
        for name, span in self.slices.items():
            layer = name.rpartition(".")[0]
            result[layer] = slice(result.get(layer, span).start, span.stop)  # they lie side by side
        return result

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors inside ``flat`` [..., D] by name, each ``[..., *shape]``; they share its memory."""
        # One `split` and not a slice per tensor: the gradient of a split is one concatenation, that of each slice would
        # be a whole vector of zeros. `reshape` copies nothing, since it only divides the last dimension.
        pieces = flat.split(self.sizes, dim=-1)
        lead = flat.shape[:-1]
        return {n: p.reshape(lead + s) for n, p, s in zip(self.names, pieces, self.shapes, strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Join tensors ``[..., *shape]``, by name, to a new vector ``[..., D]``: the inverse of ``views``."""
        if not self.names:
            return torch.empty(0, dtype=self.dtype)
        first = tensors[self.names[0]]
        lead = first.shape[: first.dim() - len(self.shapes[0])]
        return torch.cat([tensors[n].reshape(*lead, s) for n, s in zip(self.names, self.sizes, strict=True)], dim=-1)

    def select(self, patterns: str | Iterable[str]) -> Tensor:
        """A mask [D] (bool) of the parameters whose names match at least one shell pattern, such as ``"backbone.*"``.

        Raises:
            ValueError: a pattern matches no parameter.
        """
        mask = torch.zeros(self.dim, dtype=torch.bool)
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            matched = fnmatch.filter(self.names, pattern)
            if not matched:
                raise ValueError(f"Pattern {pattern!r} matches no parameter; the names are: {', '.join(self.names)}.")
            for name in matched:
                mask[self.slices[name]] = True
        return mask

    def spans(self, names: Iterable[str]) -> list[slice]:
        """The slices of the vector that hold the tensors ``names``; neighbouring slices are merged into one."""
        merged: list[slice] = []
        for span in sorted((self.slices[n] for n in names), key=lambda s: s.start):
            if merged and merged[-1].stop == span.start:
                merged[-1] = slice(merged[-1].start, span.stop)
            else:
                merged.append(span)
        return merged
