"""The numbers of coordinates that minimise the bound on FL-SSGD's uplink time.

"Communication-efficient Subspace Methods for High-dimensional Federated Learning", section III.
"""

import math
from collections.abc import Sequence


def best_coordinates_time_sharing(
    gap: float, smoothness: float, gradient_bound: float, weights: Sequence[float], rates: Sequence[float], dim: int
) -> list[float]:
    """The l_i that minimise the bound (4) on FL-SSGD's uplink time, ``0 < l_i <= d``, real numbers.

    Without the upper limit ``l_i = theta w_i sqrt(r_i)``, ``theta = d L n G^2 / (2 F0) sum_j w_j / sqrt(r_j)``. With
    the limit, the clients with the largest ``w_i sqrt(r_i)`` have l_i = d; every possible number of them is tried.

    Args:
        gap: how far the objective can fall, F0 = f(x_0) - f*.
        smoothness: Lipschitz constant of the gradient (L).
        gradient_bound: bound on the norm of stochastic gradients (G).
        weights: the clients' weights in the objective (w_i), with sum 1.
        rates: the clients' uplink rates in bits per second (r_i).
        dim: number of parameters (d).
    """
    factor = _variance_factor(smoothness, gradient_bound, len(weights), dim)
    order = sorted(range(len(weights)), key=lambda i: weights[i] * math.sqrt(rates[i]), reverse=True)
    candidates = []
    for num_fixed in range(len(weights) + 1):
        fixed, free = order[:num_fixed], order[num_fixed:]
        # The bound is (seconds of a round) * (number of rounds); of both factors, the terms of the fixed clients.
        spent = sum(dim / rates[i] for i in fixed)
        remaining = gap + factor * sum(weights[i] ** 2 for i in fixed) / dim
        total = sum(weights[i] / math.sqrt(rates[i]) for i in free)
        # The bound as a function of theta is (spent + theta total) (remaining + factor total / theta)^2; its derivative
        # is zero where remaining theta^2 - factor total theta - 2 factor spent = 0.
        theta = factor * total / (2 * remaining)
        theta += math.sqrt(theta**2 + 2 * factor * spent / remaining) if free else 0.0
        chosen = dict.fromkeys(fixed, float(dim))
        chosen.update({i: min(theta * weights[i] * math.sqrt(rates[i]), float(dim)) for i in free})
        candidates.append([chosen[i] for i in range(len(weights))])
    return min(
        candidates, key=lambda sizes: bound_time_sharing(sizes, gap, smoothness, gradient_bound, weights, rates, dim)
    )


def best_coordinates_channel_sharing(
    gap: float, smoothness: float, gradient_bound: float, weights: Sequence[float], dim: int
) -> list[int]:
    """The whole l_i that minimise the bound (5) on FL-SSGD's uplink time under a shared capacity, ``1 <= l_i <= d``.

    For a given sum of the l_i, the best whole numbers are found greedily: one coordinate more at a time, for the client
    whose ``w_i^2 / l_i`` falls most. The best sum is searched around that of the minimiser over real numbers, from half
    to twice its size. The arguments are those of ``best_coordinates_time_sharing``.
    """
    real = best_coordinates_time_sharing(gap, smoothness, gradient_bound, weights, [1.0] * len(weights), dim)
    current = [max(1, int(value / 2)) for value in real]
    best, least = list(current), math.inf
    for _ in range(sum(current), min(len(current) * dim, math.ceil(2 * sum(real)) + 2 * len(current)) + 1):
        bound = bound_channel_sharing(current, gap, smoothness, gradient_bound, weights, dim)
        if bound < least:
            best, least = list(current), bound
        open_ends = [i for i, value in enumerate(current) if value < dim]
        if open_ends:
            current[max(open_ends, key=lambda i: weights[i] ** 2 / (current[i] * (current[i] + 1)))] += 1
    return best


def bound_time_sharing(
    sizes: Sequence[float],
    gap: float,
    smoothness: float,
    gradient_bound: float,
    weights: Sequence[float],
    rates: Sequence[float],
    dim: int,
) -> float:
    """The bound on the uplink time under time sharing for l_i = ``sizes``: equation (4), times eps^2 / B."""
    seconds = sum(value / rate for value, rate in zip(sizes, rates, strict=True))
    return seconds * _rounds(sizes, gap, smoothness, gradient_bound, weights, dim)


def bound_channel_sharing(
    sizes: Sequence[float],
    gap: float,
    smoothness: float,
    gradient_bound: float,
    weights: Sequence[float],
    dim: int,
) -> float:
    """The bound on the uplink time under channel sharing for l_i = ``sizes``: equation (5), times eps^2 C / B."""
    return sum(sizes) * _rounds(sizes, gap, smoothness, gradient_bound, weights, dim)


def _rounds(
    sizes: Sequence[float], gap: float, smoothness: float, gradient_bound: float, weights: Sequence[float], dim: int
) -> float:
    factor = _variance_factor(smoothness, gradient_bound, len(weights), dim)
    return float((gap + factor * sum(w**2 / value for w, value in zip(weights, sizes, strict=True))) ** 2)


def _variance_factor(smoothness: float, gradient_bound: float, count: int, dim: int) -> float:
    return dim * smoothness * count * gradient_bound**2 / 2
