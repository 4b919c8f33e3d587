"""Clocks: what a client's seconds consist of, the slowest of a round, and times that are given."""

import pytest
import torch
from torch import Tensor

from lfl.system import EqualSpeeds, FixedTimes, Speeds

IDS = torch.tensor([1, 3])


def test_a_client_computes_and_communicates_and_the_slowest_ends_the_round() -> None:
    system = FixedTimes([[1.0, 2.0, 3.0, 4.0], [3.0, 9.0, 3.0, 5.0]], communication=0.5)
    system.check(4)
    times = system.client_times(IDS, None, 2, 0)
    assert [part.tolist() for part in (times.download, times.compute, times.upload)] == [[0, 0], [9, 5], [0.5, 0.5]]
    assert system.client_seconds(IDS, None, 2, 0).tolist() == [9.5, 5.5]
    assert system.round_seconds(IDS, torch.zeros(2), 1, 0) == {"time": 4.5}
    assert system.compute_seconds(torch.tensor([1]), 4, 0).tolist() == [9.0]  # repeated after the second round
    with pytest.raises(ValueError, match="must list 3 numbers, one a client"):
        system.check(3)


def test_equal_speeds() -> None:
    assert EqualSpeeds(2.5).client_seconds(IDS, None, 3, 0).tolist() == [2.5, 2.5]
    with pytest.raises(ValueError, match="`seconds=0` of EqualSpeeds must be a number greater than 0"):
        EqualSpeeds(0)


@pytest.mark.parametrize("seconds", [[-1.0, 1.0], [float("nan"), 1.0], [1.0, 1.0, 1.0]])
def test_seconds_of_ones_own_are_looked_at(seconds: list[float]) -> None:
    class Own(Speeds):
        def compute_seconds(self, clients: Tensor, round_number: int, seed: int) -> Tensor:
            return torch.tensor(seconds)

    with pytest.raises(ValueError, match="Own must give a number of seconds, 0 at least, for each of 2 clients"):
        Own().client_seconds(torch.arange(2), None, 1, 0)
