"""One all-reduce for all sums; several real processes are in tests/contract/test_processes.py."""

from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from lfl.processes.group import Processes
from lfl.processes.sums import ProcessSums


class Twin(Processes):
    """One of two processes; the other one does the same."""

    count, device = 2, torch.device("cpu")  # type: ignore[assignment]

    def __init__(self) -> None:
        self.agreed = 0

    def gather(self, value: Any) -> list[Any]:
        self.agreed += 1
        return [value, value]


class Single(Twin):
    count = 1  # type: ignore[assignment]


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of what was reduced; the other process brings the same numbers."""
    lengths: list[int] = []

    def all_reduce(flat: Tensor) -> None:
        lengths.append(len(flat))
        flat *= 2

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return lengths


def test_names_are_agreed_upon_once(reductions: list[int]) -> None:
    twin = Twin()
    sums = ProcessSums(twin)
    for number in (1.0, 2.0, 3.0):
        found = sums.join({"a": torch.tensor([number, 1.0]).double(), "b": torch.tensor(number).double()})
        assert found["a"].tolist() == [2 * number, 2.0]
        assert found["b"].item() == 2 * number
        assert found["b"].shape == ()
    # A header alone, which says that nothing fits; then misfits, two counts of holders, and three numbers.
    assert reductions == [1, 6, 6, 6]
    assert twin.agreed == 1


def test_what_nobody_has_is_forgotten(reductions: list[int]) -> None:
    sums = ProcessSums(Twin())
    one = torch.ones(1).double()
    sums.join({("own", "a"): one, ("logged", "a"): one})
    assert set(sums.join({("own", "a"): one})) == {("own", "a")}
    sums.join({("own", "a"): one})
    assert reductions == [1, 5, 5, 3]


def test_one_process_has_nothing_to_join(reductions: list[int]) -> None:
    value = torch.ones(1).double()
    sums = ProcessSums(Single())
    assert sums.join({"a": value})["a"] is value
    assert sums.num_processes == 1
    assert reductions == []
