"""What partitioners share: examples sorted by class, and shares of clients turned into whole examples."""

from typing import NamedTuple

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
