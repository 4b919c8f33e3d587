"""Stragglers, time per example, and speeds that go with the data."""

import pytest
import torch
from torch import Tensor

from lfl.system import (
    CorrelatedSpeeds,
    EqualSpeeds,
    ExponentialSpeeds,
    FixedTimes,
    PerExample,
    Speeds,
    Stragglers,
    Unreliable,
    Workload,
)


def workload(sizes: list[int], counts: list[list[int]] | None = None) -> Workload:
    own = torch.tensor(sizes)

    def label_counts() -> Tensor:
        return torch.tensor(counts)

    return Workload(own, lambda ids, number, seed: number * own[ids], label_counts, 320.0)


def prepared(system: Speeds, sizes: list[int], counts: list[list[int]] | None = None) -> Speeds:
    system.prepare(workload(sizes, counts))
    system.check(len(sizes))
    return system


@pytest.mark.parametrize(("share", "slow"), [(0.1, 10), (0.3, 30), (0.0, 0), (1.0, 100)])
def test_so_many_clients_are_slow_by_the_factor(share: float, slow: int) -> None:
    ids, plain = torch.arange(100), ExponentialSpeeds(dynamic=True)
    system = prepared(Stragglers(share, 100.0, ExponentialSpeeds(dynamic=True)), [5] * 100)
    ratios = torch.stack([system.compute_seconds(ids, n, 3) / plain.compute_seconds(ids, n, 3) for n in (1, 2)])
    assert torch.equal(ratios[0].round(), ratios[1].round())  # the same ones in every round
    assert sorted(ratios[0].round().tolist()) == [1.0] * (100 - slow) + [100.0] * slow
    some = torch.tensor([7, 93])
    assert torch.equal(system.compute_seconds(some, 1, 3), system.compute_seconds(ids, 1, 3)[some])
    if 0 < slow < 100:
        other = system.compute_seconds(ids, 1, 4) / plain.compute_seconds(ids, 1, 4)
        assert not torch.equal(other > 50, ratios[0] > 50)  # drawn by the seed


def test_the_mixture_of_the_paper() -> None:
    """10 % of clients with mean 10, the others with mean 0.1: the mean over both, of 4000 clients and 20 rounds."""
    system = prepared(Stragglers(0.1, 100.0, ExponentialSpeeds(means=0.1, dynamic=True)), [1] * 4000)
    ids, draws = torch.arange(4000), []
    for number in range(1, 21):
        draws.append(system.compute_seconds(ids, number, 0))
    slow = system.is_slow(0)  # type: ignore[attr-defined]
    found = torch.stack(draws)
    assert float(found[:, slow].mean()) == pytest.approx(10.0, abs=4 * 10 / 8000**0.5)
    assert float(found[:, ~slow].mean()) == pytest.approx(0.1, abs=4 * 0.1 / 72000**0.5)


def test_time_per_example() -> None:
    """m_i examples of tau_i seconds; the world's m_i are round times size."""
    system = prepared(PerExample(FixedTimes([[0.5, 2.0, 1.0]])), [3, 5, 7])
    assert system.compute_seconds(torch.tensor([0, 1, 2]), 1, 0).tolist() == [1.5, 10.0, 7.0]
    assert system.compute_seconds(torch.tensor([1]), 3, 0).tolist() == [30.0]
    with pytest.raises(ValueError, match="PerExample needs to know the clients' data"):
        PerExample().compute_seconds(torch.tensor([0]), 1, 0)


def test_speeds_by_sizes_are_in_the_order_of_sizes() -> None:
    times = FixedTimes([[4.0, 1.0, 3.0, 2.0]])
    system = prepared(CorrelatedSpeeds("sizes", 4, times), [30, 40, 10, 20])
    assert system.compute_seconds(torch.arange(4), 1, 0).tolist() == [3.0, 4.0, 1.0, 2.0]
    halves = prepared(CorrelatedSpeeds("sizes", 2, times), [30, 40, 10, 20]).compute_seconds(torch.arange(4), 1, 0)
    assert sorted(halves[2:].tolist()) == [1.0, 2.0]
    assert sorted(halves[:2].tolist()) == [3.0, 4.0]


def test_speeds_by_labels_are_those_of_others_by_groups() -> None:
    """Nine clients with two of six classes in three groups: the fastest three have classes 0 and 1, and so on."""
    owned = [4, 0, 2, 5, 1, 3, 0, 4, 2]  # the class of which a client has most
    counts = [[9 if c == own else 1 if c == 5 - own else 0 for c in range(6)] for own in owned]
    system = CorrelatedSpeeds("labels", 3, ExponentialSpeeds(dynamic=True))
    prepared(system, [10] * 9, counts)
    assert system.group_of_clients().tolist() == [own // 2 for own in owned]
    ids = torch.arange(9)
    times = system.compute_seconds(ids, 1, 2)
    plain = ExponentialSpeeds(dynamic=True)
    assert torch.equal(times.sort().values, plain.compute_seconds(ids, 1, 2).sort().values)
    by_group = [times[[own // 2 == g for own in owned]] for g in range(3)]
    assert float(by_group[0].max()) < float(by_group[1].min())
    assert float(by_group[1].max()) < float(by_group[2].min())
    # Whoever's times they are in round 1, they stay theirs.
    places = [int((plain.compute_seconds(ids, 1, 2) == t).nonzero()) for t in times]
    assert torch.equal(system.compute_seconds(ids, 5, 2), plain.compute_seconds(ids, 5, 2)[places])


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="Unreliable inside Stragglers would lose nobody"):
        Stragglers(speeds=Unreliable(dropout=0.1))
    with pytest.raises(ValueError, match="put CorrelatedSpeeds into PerExample"):
        CorrelatedSpeeds(speeds=PerExample())
    with pytest.raises(ValueError, match=r"`share=1.5` of Stragglers must be at most 1"):
        Stragglers(1.5)
    with pytest.raises(ValueError, match="`factor=0` of Stragglers must be a number greater than 0"):
        Stragglers(0.1, 0)
    with pytest.raises(ValueError, match="`by=ages` of CorrelatedSpeeds must be one of labels, sizes"):
        CorrelatedSpeeds("ages")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must list 3 numbers"):
        prepared(PerExample(FixedTimes([[1.0]])), [1, 1, 1])
    assert PerExample(EqualSpeeds(2.0)).speeds.compute_seconds(torch.tensor([0]), 1, 0).tolist() == [2.0]
