"""Weighted means of updates."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lfl.aggregation import Aggregator, FedExP, MeanAggregator, NormalizedReaggregation
from lfl.aggregation.aggregator import check_adds_up


def test_weights_by_hand() -> None:
    """Updates 1 and 5 with 3 and 1 examples: (3*1 + 1*5)/4 = 2 by examples, 3 uniformly."""
    for weighting, expected in (("examples", 2.0), ("uniform", 3.0)):
        aggregator = MeanAggregator(weighting)
        for rows, counts in (([[1.0]], [3]), ([[5.0]], [1])):
            aggregator.add(torch.tensor(rows), aggregator.weights(torch.tensor(counts)))
        assert aggregator.result().item() == expected
        aggregator.start()
        aggregator.add(torch.tensor([[7.0]]), torch.ones(1).double())
        assert aggregator.result().item() == 7.0


def test_auto_follows_what_a_run_is_stated_for_and_others_stay() -> None:
    auto, fixed = MeanAggregator(), MeanAggregator("examples")
    for aggregator, found in ((auto, ["uniform", "examples", "examples"]), (fixed, ["examples"] * 3)):
        for stated, weighting in zip(("uniform", "examples", None), found, strict=True):
            aggregator.settle(stated)
            assert aggregator.weighting == weighting
            assert aggregator.weights(torch.tensor([2, 5])).tolist() == ([1, 1] if weighting == "uniform" else [2, 5])
    assert (auto.asked_weighting, fixed.asked_weighting) == ("auto", "examples")


@given(st.permutations(range(6)))
def test_aggregation_does_not_depend_on_the_order(order: list[int]) -> None:
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(1, 7)
    results = []
    for positions in (list(range(6)), list(order)):
        aggregator = MeanAggregator()
        for cohort in (positions[:2], positions[2:]):
            aggregator.add(rows[cohort], aggregator.weights(weights[cohort]))
        results.append(aggregator.result())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-14)


class Median(Aggregator):
    def __init__(self, resets: bool) -> None:
        super().__init__()
        self.resets = resets
        self.rows: list[Tensor] = []

    def start(self) -> None:
        super().start()
        if self.resets:
            self.rows = []

    def add(self, rows: Tensor, weights: Tensor) -> None:
        self.rows.append(rows.double())

    def result(self) -> Tensor:
        rows, self.rows = torch.cat(self.rows), []
        return rows.median(dim=0).values


class SecondMoment(Aggregator):
    """Of one's own, in sums."""

    def add(self, rows: Tensor, weights: Tensor) -> None:
        self.accumulate("square", weights @ rows.double() ** 2)
        self.accumulate("sum", weights @ rows.double())
        self.accumulate("weight", weights.sum())

    def result(self) -> Tensor:
        return (self.sums["square"] / self.sums["weight"]).sqrt() * self.sums["sum"].sign()


class LastRow(MeanAggregator):
    """Keeps something beside its sums."""

    def add(self, rows: Tensor, weights: Tensor) -> None:
        super().add(rows, weights)
        self.last = rows[-1].double()

    def result(self) -> Tensor:
        return super().result() + getattr(self, "last", 0.0)


def test_aggregates_that_follow_from_sums_alone() -> None:
    for aggregator in (
        MeanAggregator(),
        MeanAggregator("uniform"),
        FedExP(),
        NormalizedReaggregation(),
        SecondMoment(),
    ):
        check_adds_up(aggregator, 11)
        assert aggregator.sums == {}


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (Median(True), "^Median cannot be used on several processes, .* of two halves of some clients it raises"),
        (Median(False), "^Median cannot be used on several processes"),
        (
            LastRow(),
            "^LastRow cannot be used on several processes, .* it gives another result. Keep what `result` needs",
        ),
    ],
)
def test_aggregates_that_need_more_are_refused_on_several_processes(aggregator: Aggregator, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_adds_up(aggregator, 11)
