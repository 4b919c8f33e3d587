"""Examples sorted by class, and shares of clients turned into whole examples: what partitioners have in common."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class ExamplesByClass(NamedTuple):
    """Examples sorted by class, in random order within each class.

    Attributes:
        order: position of each example, [n].
        classes: number of the class of example ``order[j]``, [n].
        ranks: place of example ``order[j]`` within its class, from 0, [n].
        counts: number of examples of each class, [classes].
        starts: where each class begins in ``order``, [classes].
    """

    order: Tensor
    classes: Tensor
    ranks: Tensor
    counts: Tensor
    starts: Tensor

    @classmethod
    def shuffled(cls, labels: Tensor, draws: torch.Generator, num_classes: int | None = None) -> "ExamplesByClass":
        """Sort examples by class.

        Args:
            labels: class of each example, [n] int64.
            draws: generator of the random order.
            num_classes: number of classes, if ``labels`` are 0..num_classes-1; else the labels that occur are numbered
                in ascending order.
        """
        classes = compact_labels(labels)[1] if num_classes is None else labels
        counts = torch.bincount(classes, minlength=num_classes or 0)
        starts = counts.cumsum(0) - counts
        # Shuffled first and then sorted by a stable sort, which keeps the random order within each class.
        shuffle = torch.randperm(len(labels), generator=draws)
        order = shuffle[classes[shuffle].argsort(stable=True)]
        classes = classes[order]
        return cls(order, classes, torch.arange(len(labels)) - starts[classes], counts, starts)


def deal_by_shares(shares: Tensor, count: int, start: float) -> Tensor:
    """Deal ``count`` examples in a row to clients by their shares, by systematic sampling.

    The shares are laid end to end on a line. Example j is the point ``(j + start) / count`` of the line, and belongs to
    the client whose stretch it falls on. A client with the share p gets ``count * p`` examples, rounded up or down; if
    ``start`` is uniform, it gets ``count * p`` on average.

    Args:
        shares: share of each client, not negative, [N]; their sum need not be 1.
        count: number of examples.
        start: a number in [0, 1), drawn by the caller.

    Returns:
        The client of each example, ascending, [count].
    """
    edges = shares.cumsum(0)
    # Scaled by the last edge itself: rounding makes the sum of normalised shares differ from 1.
    points = (torch.arange(count, dtype=shares.dtype) + start) / max(count, 1) * edges[-1]
    # `right=True`: a point on an edge belongs to the next client, so that a share of 0 gets nothing. The clamp is for
    # a last point that is rounded up to the last edge.
    return torch.searchsorted(edges, points, right=True).clamp(max=len(shares) - 1)


def compact_labels(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The different values of ``labels`` [n] in ascending order, and for each entry the index of its value [n]."""
    values, index = torch.unique(labels, return_inverse=True)
    return values, index


def log_gamma(rng: np.random.Generator, alpha: float | np.ndarray, count: int) -> Tensor:
    """Draw the logarithms of Gamma(alpha) variates [count].

    G(alpha) = G(alpha + 1) * U^(1/alpha) in distribution, U uniform. For a small alpha the variates underflow to 0, and
    numpy's own Dirichlet divides 0 by 0; their logarithms do not.
    """
    # `log1p(-u)` is log U with U = 1 - u in (0, 1], since u may be 0.
    boosted = np.log(rng.standard_gamma(alpha + 1, count))
    return torch.from_numpy(boosted + np.log1p(-rng.random(count)) / alpha)


def deal_by_mixes(
    by_class: ExamplesByClass, num_clients: int, rng: np.random.Generator, log_mix_of: Callable[[int], Tensor]
) -> Tensor:
    """Deal all examples to clients of equal sizes, which draw from the classes by mixes of their own.

    Clients are served in random order. When a class has run out, the rest of a client's examples are drawn by its mix
    of the classes that are left.

    Args:
        by_class: the examples, of K classes.
        num_clients: number of clients (N).
        rng: of the draws.
        log_mix_of: to the logarithms of a client's shares of the classes [K], but for a constant; called once a client.

    Returns:
        The client of each example, [n] int64.
    """
    left = by_class.counts.numpy().copy()
    count = int(left.sum())
    taken = np.zeros((num_clients, len(left)), dtype=np.int64)
    order = rng.permutation(num_clients)
    # The first in this order get one more, where the examples cannot be shared equally.
    sizes = count // num_clients + (np.arange(num_clients) < count % num_clients)
    for client, size in zip(order.tolist(), sizes.tolist(), strict=True):
        taken[client] = _drawn(rng, log_mix_of(client), left, size)
        left -= taken[client]
    # Class after class, the shuffled examples go to the clients by what they have drawn.
    owners = torch.empty_like(by_class.order)
    owners[by_class.order] = torch.from_numpy(np.concatenate([np.arange(num_clients).repeat(n) for n in taken.T]))
    return owners


def _drawn(rng: np.random.Generator, log_mix: Tensor, left: np.ndarray, size: int) -> np.ndarray:
    """Draw ``size`` examples from classes by a mix, no more than are ``left`` [K]; how many of each class [K].

    ``log_mix`` [K] are the logarithms of the classes' shares, but for a constant. What is drawn beyond what is left is
    drawn again from the other classes.
    """
    taken = np.zeros_like(left)
    while size:
        # From logarithms each time: shares may be too small for numbers beside that of a class that has run out.
        shares = log_mix.masked_fill(torch.from_numpy(taken >= left), -math.inf).softmax(0).numpy()
        drawn = np.minimum(rng.multinomial(size, shares), left - taken)
        taken += drawn
        size -= int(drawn.sum())
    return taken
