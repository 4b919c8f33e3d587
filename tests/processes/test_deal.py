"""How clients are dealt to processes."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfl.processes.deal import deal, deal_together


def loads(work: list[int], num_processes: int) -> list[int]:
    ranks = deal(torch.tensor(work, dtype=torch.int64), num_processes).tolist()
    assert len(ranks) == len(work)
    assert all(0 <= rank < num_processes for rank in ranks)
    return [sum(w for w, r in zip(work, ranks, strict=True) if r == rank) for rank in range(num_processes)]


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 9))
def test_work_is_balanced(work: list[int], num_processes: int) -> None:
    """When the busiest process got its last client, it had the least: no process ends earlier by more than that one."""
    found = loads(work, num_processes)
    assert sum(found) == sum(work)
    assert max(found) - min(found) <= max(work, default=0)


@pytest.mark.parametrize(
    ("work", "ranks"),
    [
        ([], []),
        ([3, 3, 3, 3], [0, 1, 0, 1]),
        ([1, 2, 3, 4], [0, 1, 1, 0]),
        ([9, 1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ([0, 0, 0], [0, 0, 0]),
    ],
)
def test_the_longest_first_to_the_least_busy(work: list[int], ranks: list[int]) -> None:
    assert deal(torch.tensor(work, dtype=torch.int64), 2).tolist() == ranks


def test_more_processes_than_clients() -> None:
    assert deal(torch.tensor([5, 7]), 4).tolist() == [1, 0]


@pytest.mark.parametrize("num_processes", [1, 2, 3, 7])
@pytest.mark.parametrize("shared", [0.5, 3.0, 100.0])
def test_those_trained_together_are_cut_as_well_as_can_be(num_processes: int, shared: float) -> None:
    """Against all cuts of the sorted clients into consecutive parts."""
    work = torch.tensor([4, 9, 9, 1, 3, 12, 5, 5, 2])
    ranks = deal_together(work, num_processes, shared)

    def slowest(parts: list[list[int]]) -> float:
        return max(shared * max(part) + sum(part) for part in parts if part)

    ordered = sorted(work.tolist(), reverse=True)
    places = range(1, len(ordered))
    best = min(
        slowest([ordered[i:j] for i, j in pairwise((0, *cuts, len(ordered)))])
        for count in range(num_processes)
        for cuts in combinations(places, count)
    )
    dealt = [work[ranks == rank].tolist() for rank in range(num_processes)]
    assert sum(len(part) for part in dealt) == len(work)
    assert slowest(dealt) == pytest.approx(best, rel=1e-9)


def test_dealing_together_without_clients_or_with_few() -> None:
    assert deal_together(torch.tensor([], dtype=torch.int64), 3, 3.0).tolist() == []
    assert sorted(deal_together(torch.tensor([5, 7]), 4, 3.0).tolist()) == [0, 1]
    assert deal_together(torch.tensor([0, 0]), 2, 3.0).max() < 2
