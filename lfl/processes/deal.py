"""The choice of the process that trains each client of a round."""

import heapq
import math

import torch
from torch import Tensor


def deal(work: Tensor, num_processes: int) -> Tensor:
    """Deal the clients of a round to processes, so that all processes have about the same work.

    The client with the most work comes first, and each goes to the process that has the least work so far (the lowest
    rank among equals). The round then takes at most 4/3 of the shortest possible time (Graham, 1969). Every process
    computes the same result, without communication.

    Args:
        work: expected work of each client [M], such as its local steps (int64, not negative).
        num_processes: at least 1.

    Returns:
        The rank of each client's process [M] (int64). With fewer clients than processes, some processes have none.
    """
    ranks = [0] * len(work)
    # A heap of (work so far, rank): its first entry is the least loaded process, the lowest rank among equals.
    loads = [(0, rank) for rank in range(num_processes)]
    # Stable, so that clients of equal work come in the same order on every process.
    order = work.argsort(descending=True, stable=True)
    for position, steps in zip(order.tolist(), work[order].tolist(), strict=True):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + steps, rank))
        ranks[position] = rank
    return torch.tensor(ranks, dtype=torch.int64)


def deal_together(work: Tensor, num_processes: int, shared: float) -> Tensor:
    """Deal clients to processes that train their clients together, step by step.

    Such a process takes the time ``shared * (its longest work) + (the sum of its work)``, so clients with similar work
    belong together. The clients are sorted by work and cut into consecutive groups, one for each process, so that the
    slowest process is as fast as possible.

    Args:
        work: as in ``deal``.
        num_processes: at least 1.
        shared: fixed cost of a step, in units of the cost that each client adds to it.

    Returns:
        The rank of each client's process [M] (int64), as in ``deal``.
    """
    order = work.argsort(descending=True, stable=True)
    steps = work[order].double().tolist()
    # Bisection for the shortest time limit that needs no more than `num_processes` groups. The upper end is the time
    # of one process that trains everybody.
    low = 0.0
    high = shared * max(steps, default=0.0) + sum(steps)
    for _ in range(50):  # halves the interval to rounding error
        middle = (low + high) / 2
        # A slice of the last rank, since there may be no client; an empty list compares as smaller.
        if _cut(steps, middle, shared)[-1:] < [num_processes]:
            high = middle
        else:
            low = middle
    ranks = torch.empty_like(order)
    ranks[order] = torch.tensor(_cut(steps, high, shared), dtype=torch.int64)
    return ranks


def _cut(work: list[float], limit: float, shared: float) -> list[int]:
    """Fill one process after another up to the time ``limit``; returns the rank of each entry of ``work``, descending.

    Each process gets at least one client, and there may be more ranks than processes.
    """
    ranks: list[int] = []
    rank = -1
    cost = math.inf  # so that the first client opens the first process
    for steps in work:
        cost += steps
        if cost > limit:
            rank += 1
            # The first client of a process has the most steps: all steps of the process are paid for with it.
            cost = (shared + 1) * steps
        ranks.append(rank)
    return ranks
