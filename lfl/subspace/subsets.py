"""Subsets of the coordinates: those of the largest numbers, and random ones of a possibly fractional expected size."""

import math

import torch
from torch import Tensor

from lfl.randomness import fold, random_bits, uniform

_ROUNDING = 64  # units in the last place by which numbers differ that are equal but for rounding


def mark_largest(values: Tensor, count: int) -> Tensor:
    """Return where the ``count`` largest numbers of each row are, as masks [..., n]; of equal ones the first ones.

    Numbers that are at least zero. Floating-point ones are equal where they differ by rounding only: which of two means
    of the same numbers is larger depends on the order in which they were added.
    """
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    # Which of equal ones `torch.topk` takes depends on the device; how large the least of them is does not. A stable
    # sort would tell, too, in several times the time.
    least = values.kthvalue(values.shape[-1] - count + 1, dim=-1, keepdim=True).values
    if values.is_floating_point():
        rounding = _ROUNDING * torch.finfo(values.dtype).eps
        is_larger = values > least * (1 + rounding)
        is_equal = (values >= least * (1 - rounding)) & ~is_larger
    else:
        is_larger, is_equal = values > least, values == least
    marked: Tensor = is_larger | (is_equal & (is_equal.cumsum(dim=-1) <= count - is_larger.sum(dim=-1, keepdim=True)))
    return marked


def mark_largest_of_each(values: Tensor, counts: Tensor) -> Tensor:
    """Return where the largest numbers of each row [C, n] are, as ``mark_largest`` does, ``counts`` [C] of them."""
    return torch.stack([mark_largest(row, count) for row, count in zip(values, counts.tolist(), strict=True)])


def subset_sizes(keys: Tensor, expected: Tensor) -> Tensor:
    """Draw sizes tau [C] (int64) whose mean is ``expected`` [C], l: ceil(l) with probability l - ceil(l) + 1.

    Otherwise tau is ceil(l) - 1. A whole l is always taken as it is.
    """
    upper = expected.ceil()
    drawn = uniform(fold(keys, 0), 1, torch.float64).squeeze(-1)
    return (upper - (drawn >= expected - upper + 1).to(upper.dtype)).long()


def random_subsets(keys: Tensor, expected: Tensor, dim: int) -> Tensor:
    """Draw uniformly random subsets as masks [C, dim] (bool); ``E[mask] = expected / dim``.

    Args:
        keys: one key per client [C].
        expected: expected sizes l [C], float64, 0 < l <= dim.
        dim: number of coordinates to choose from.
    """
    sizes = subset_sizes(keys, expected)
    # The smallest tau of as many random numbers. Sizes and numbers have keys of their own (0 and 1), so that they are
    # independent.
    return mark_largest_of_each(~random_bits(fold(keys, 1), dim), sizes)


def check_expected(expected: float | list[float], dim: int, num_clients: int, name: str = "l") -> Tensor:
    """Return the expected subset sizes of all clients [N], float64, from one number or a list of N.

    Raises:
        ValueError: a number is outside (0, dim], or the list does not have one number for each client.
    """
    values = torch.tensor(expected, dtype=torch.float64)
    if values.dim() and len(values) != num_clients:
        raise ValueError(f"`{name}` lists {len(values)} numbers, but there are {num_clients} clients.")
    wrong = [v for v in values.reshape(-1).tolist() if not (0 < v <= dim and math.isfinite(v))]
    if wrong:
        raise ValueError(f"`{name}={wrong[0]}` must be greater than 0 and at most D={dim}, the number of parameters.")
    return values.expand(num_clients)
