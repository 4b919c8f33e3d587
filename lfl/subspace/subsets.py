"""Random subsets of the coordinates, one per client, of a possibly fractional expected size."""

import math

import torch
from torch import Tensor

from lfl.randomness import fold, random_bits, uniform


def subset_sizes(keys: Tensor, expected: Tensor) -> Tensor:
    """Sizes tau [C] (int64) with mean ``expected`` [C]: ceil(l) with probability l - ceil(l) + 1, else ceil(l) - 1."""
    upper = expected.ceil()
    drawn = uniform(fold(keys, 0), 1, torch.float64).squeeze(-1)
    return (upper - (drawn >= expected - upper + 1).to(upper.dtype)).long()


def random_subsets(keys: Tensor, expected: Tensor, dim: int) -> Tensor:
    """Masks [C, dim] (bool) of uniformly random subsets; ``E[mask] = expected / dim``.

    Args:
        keys: one key per client [C].
        expected: expected sizes l [C], float64, 0 < l <= dim.
        dim: coordinates.
    """
    sizes = subset_sizes(keys, expected)
    ranks = random_bits(fold(keys, 1), dim).argsort(dim=-1, stable=True)
    chosen = torch.arange(dim, device=keys.device) < sizes[:, None]
    return torch.zeros(len(keys), dim, dtype=torch.bool, device=keys.device).scatter(1, ranks, chosen)


def check_expected(expected: float | list[float], dim: int, num_clients: int, name: str = "l") -> Tensor:
    """Expected sizes of all clients [N], float64, from one number or a list.

    Raises:
        ValueError: a number outside (0, dim], or a list of another length.
    """
    values = torch.tensor(expected, dtype=torch.float64)
    if values.dim() and len(values) != num_clients:
        raise ValueError(f"`{name}` lists {len(values)} numbers, but there are {num_clients} clients.")
    wrong = [v for v in values.reshape(-1).tolist() if not (0 < v <= dim and math.isfinite(v))]
    if wrong:
        raise ValueError(f"`{name}={wrong[0]}` must be greater than 0 and at most D={dim}, the number of parameters.")
    return values.expand(num_clients)
