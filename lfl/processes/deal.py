"""Which process trains which client of a round."""

import heapq
import math

import torch
from torch import Tensor


def deal(work: Tensor, num_processes: int) -> Tensor:
    """The process of each client, so that all have about the same work: a rank for each entry of ``work`` [M].

    The longest work first, each to the process that has the least so far (the first of those): at most 4/3 of the best
    possible time (Graham, 1969). The same on every process, without a word between them.

    Args:
        work: expected work of each client, such as its local steps (int64, not negative).
        num_processes: at least 1.

    Returns:
        Ranks [M] (int64). Where there are fewer clients than processes, some have none.
    """
    ranks = [0] * len(work)
    loads = [(0, rank) for rank in range(num_processes)]
    order = work.argsort(descending=True, stable=True)
    for position, steps in zip(order.tolist(), work[order].tolist(), strict=True):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + steps, rank))
        ranks[position] = rank
    return torch.tensor(ranks, dtype=torch.int64)


def deal_together(work: Tensor, num_processes: int, shared: float) -> Tensor:
    """The process of each client where those of one process are trained together, step by step.

    A process then takes ``shared * (its longest work) + (the sum)``: clients of like work belong together. Sorted by
    work they are cut into consecutive parts, so that the process that takes longest takes as short as it can.

    Args:
        work: as in ``deal``.
        num_processes: at least 1.
        shared: cost of a step that all share, in units of what a client adds to it.

    Returns:
        Ranks [M] (int64), as ``deal`` does.
    """
    order = work.argsort(descending=True, stable=True)
    steps = work[order].double().tolist()
    low, high = 0.0, shared * max(steps, default=0.0) + sum(steps)
    for _ in range(50):  # bisection: enough for any numbers
        middle = (low + high) / 2
        low, high = (low, middle) if _cut(steps, middle, shared)[-1:] < [num_processes] else (middle, high)
    ranks = torch.empty_like(order)
    ranks[order] = torch.tensor(_cut(steps, high, shared), dtype=torch.int64)
    return ranks


def _cut(work: list[float], limit: float, shared: float) -> list[int]:
    """Ranks of descending works: as many for each process as its time limit allows, and one at least."""
    ranks: list[int] = []
    rank, cost = -1, math.inf
    for steps in work:
        cost += steps
        if cost > limit:
            rank, cost = rank + 1, (shared + 1) * steps
        ranks.append(rank)
    return ranks
