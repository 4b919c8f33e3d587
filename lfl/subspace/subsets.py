"""Subsets of the coordinates: those of the largest numbers, and random ones of a possibly fractional expected size."""

import math

import torch
from torch import Tensor

from lfl.randomness import fold, random_bits, uniform

_ROUNDING = 64  # units in the last place by which numbers differ that are equal but for rounding
_LONG = 2**16  # numbers of a row from which on a sample of it pays, on a CPU
_STRIDE = 64  # one number of so many is in the sample


def mark_largest(values: Tensor, count: int) -> Tensor:
    """Return where the ``count`` largest numbers of each row are, as masks [..., n]; of equal ones the first ones.

    Numbers that are at least zero. Floating-point ones are equal where they differ by rounding only: which of two means
    of the same numbers is larger depends on the order in which they were added.
    """
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    # Which of equal ones `torch.topk` takes depends on the device; how large the least of them is does not. A stable
    # sort would tell, too, in several times the time.
    least = _largest_at(values, count)
    if values.is_floating_point():
        rounding = _ROUNDING * torch.finfo(values.dtype).eps
        lower, upper = least * (1 - rounding), least * (1 + rounding)
    else:
        lower = upper = least
    is_candidate = values >= lower
    if values.device.type == "cpu" and bool((is_candidate.sum(dim=-1) == count).all()):
        return is_candidate  # the usual case, nothing to choose; a GPU would have to be waited for to know
    is_larger = values > upper
    is_equal = is_candidate & ~is_larger
    marked: Tensor = is_larger | (is_equal & (is_equal.cumsum(dim=-1) <= count - is_larger.sum(dim=-1, keepdim=True)))
    return marked


def _largest_at(values: Tensor, count: int) -> Tensor:
    """The ``count``-th largest number of each row [..., 1]."""
    if values.device.type == "cpu" and values.shape[-1] > _LONG:
        rows = values.flatten(0, -2) if values.dim() > 1 else values[None]
        return torch.stack([_largest_of_long(row, count) for row in rows]).view(*values.shape[:-1], 1)
    return values.kthvalue(values.shape[-1] - count + 1, dim=-1, keepdim=True).values


def _largest_of_long(row: Tensor, count: int) -> Tensor:
    """The ``count``-th largest number of a row [n], a scalar, sought among those that a sample says are large.

    ``kthvalue`` copies the row, with its places, and goes over it several times.
    """
    sample = row[::_STRIDE]
    expected = count / len(row) * len(sample)
    place = math.ceil(expected + 5 * math.sqrt(expected)) + 1  # so that more than `count` are above, by far most times
    if place < len(sample) // 2:
        bound = sample.kthvalue(len(sample) - place + 1).values
        found = row[~(row < bound)]  # with those that are no numbers, which `kthvalue` takes for the largest
        row = found if len(found) >= count else row
    return row.kthvalue(len(row) - count + 1).values


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
