"""How clients are dealt to processes, and their state to those that are their homes."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lfl.distributed import deal
from lfl.state import ClientStore


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


def test_a_store_is_used_once_a_slot_is_declared_or_reserved() -> None:
    for use in (lambda store: store.declare("a", 1, torch.float64), lambda store: store.reserve("a")):
        store = ClientStore(4, "host", torch.device("cpu"))
        assert not store.is_used
        use(store)
        assert store.is_used


@pytest.mark.parametrize("kind", ["host", "memmap"])
def test_a_process_takes_its_own_rows_of_all_shards(kind: Literal["host", "memmap"], tmp_path: Path) -> None:
    saved = []
    for shard, ids in enumerate((torch.tensor([5, 0, 2]), torch.tensor([4, 3]))):
        store = ClientStore(6, kind, torch.device("cpu"), tmp_path, shard)
        store.declare("a", 1, torch.float64)
        store.scatter("a", ids, ids[:, None].double())
        saved.append(store.snapshot("now"))
    odd = ClientStore(6, "host", torch.device("cpu"))
    for state in saved:
        odd.restore(state, tmp_path, mine=lambda ids: ids % 2 == 1)
    assert odd.rows_in_use("a") == 2
    assert odd.gather("a", torch.arange(6)).flatten().tolist() == [0, 0, 0, 3, 0, 5]
