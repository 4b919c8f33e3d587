"""Rows of all clients at once, in the order of their ids, wherever and whenever they come."""

import itertools

import pytest
import torch
from torch import Tensor

from lfl.aggregation import (
    Aggregator,
    CoordinateMedian,
    GatheringAggregator,
    GeometricMedian,
    Krum,
    MedianNormClipping,
    NormClipping,
    TrimmedMean,
)
from lfl.aggregation import gathering as module
from lfl.aggregation.aggregator import check_adds_up
from lfl.aggregation.gathering import blocks, squared_norms, weighted_sum

ROBUST: list[Aggregator] = [
    CoordinateMedian(),
    TrimmedMean(0.2),
    GeometricMedian(),
    GeometricMedian("uniform"),
    Krum(1),
    Krum(1, selected=3),
    NormClipping(2.0),
    MedianNormClipping(),
]


class Kept(GatheringAggregator):
    """What ``combine`` is given."""

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        self.given = rows.tolist(), weights.tolist()
        return rows.double().mean(dim=0)


def fill(aggregator: Aggregator, rows: Tensor, cohorts: list[list[int]]) -> None:
    aggregator.start()
    for cohort in cohorts:
        places = torch.tensor(cohort)
        aggregator.add_clients(rows[places], aggregator.weights(places + 1), places, len(rows))


def test_rows_are_in_the_order_of_ids_and_lost_ones_are_left_out() -> None:
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    kept = Kept()
    fill(kept, rows, [[3, 0], [2]])
    assert kept.result().item() == pytest.approx(8 / 3)
    assert kept.given == ([[1.0], [3.0], [4.0]], [1.0, 3.0, 4.0])
    kept.start()
    kept.add(rows[:2], torch.ones(2).double())
    kept.result()
    assert kept.given == ([[1.0], [2.0]], [1.0, 1.0])


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: type(a).__name__)
def test_neither_cohorts_nor_processes_change_a_bit(aggregator: Aggregator) -> None:
    """Two processes hold half of the rows each, and add up their sums in float64."""
    rows = torch.randn(7, 1001, generator=torch.Generator().manual_seed(0))
    fill(aggregator, rows, [[0, 1, 2, 3, 4, 5, 6]])
    whole = aggregator.result()
    exactly = isinstance(aggregator, GatheringAggregator)
    tolerance = 0.0 if exactly else 1e-15  # `NormClipping` keeps a sum
    for cohorts in ([[6, 2], [0, 5, 1], [4, 3]], [[i] for i in range(7)]):
        fill(aggregator, rows, cohorts)
        torch.testing.assert_close(aggregator.result(), whole, rtol=0, atol=tolerance)
    sums = []
    for cohorts in ([[6, 2], [4]], [[0, 5], [3, 1]]):
        fill(aggregator, rows, cohorts)
        sums.append({name: value.double() for name, value in aggregator.sums.items()})
    aggregator.sums = {name: sums[0][name] + sums[1][name] for name in sums[0]}
    torch.testing.assert_close(aggregator.result(), whole, rtol=0, atol=tolerance)
    assert whole.dtype == torch.float64


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: type(a).__name__)
def test_they_run_on_several_processes_and_want_decoded_rows(aggregator: Aggregator) -> None:
    aggregator.start()
    check_adds_up(aggregator, 11)
    assert aggregator.sums == {}
    assert aggregator.decoded


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_clients_are_enough(aggregator: Aggregator, count: int) -> None:
    """Fewer than `check` asks for: others have dropped out. The aggregate lies between the rows."""
    rows = torch.randn(count, 5, generator=torch.Generator().manual_seed(1)).double()
    fill(aggregator, rows, [list(range(count))])
    found = aggregator.result()
    assert bool((found >= rows.amin(dim=0) - 1e-12).all() or isinstance(aggregator, NormClipping | MedianNormClipping))
    assert bool((found <= rows.amax(dim=0) + 1e-12).all() or isinstance(aggregator, NormClipping | MedianNormClipping))
    if count == 1 and not isinstance(aggregator, NormClipping):
        torch.testing.assert_close(found, rows[0], rtol=0, atol=1e-15)


def test_what_is_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(4, 23, generator=torch.Generator().manual_seed(2))
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    for aggregator in ROBUST:
        fill(aggregator, rows, [[0, 1, 2, 3]])
    whole = [aggregator.result() for aggregator in ROBUST]
    monkeypatch.setattr(module, "_BLOCK", 20)  # 5 columns
    assert [block.shape[1] for block in blocks(rows)] == [5, 5, 5, 5, 3]
    torch.testing.assert_close(weighted_sum(weights, rows), weights @ rows.double())
    torch.testing.assert_close(squared_norms(rows), rows.double().square().sum(dim=1))
    for aggregator, expected in zip(ROBUST, whole, strict=True):
        torch.testing.assert_close(aggregator.result(), expected, rtol=0, atol=1e-13)


def bounded(aggregator: Aggregator, num_byzantine: int) -> bool:
    """Whether attackers who send 1e6, and others who send -1e6, leave the aggregate of 11 clients with the honest.

    The honest ones are in [-1, 1]; the attackers come first.
    """
    for value in (1e6, -1e6):
        rows = torch.linspace(-1, 1, 11)[:, None].repeat(1, 3).double()
        rows[:num_byzantine] = value
        fill(aggregator, rows, [list(range(11))])
        if aggregator.result().abs().max() > 2:
            return False
    return True


@pytest.mark.parametrize(
    ("aggregator", "holds", "breaks"),
    [
        (CoordinateMedian(), 5, 6),
        (TrimmedMean(0.2), 3, 4),  # ceil(0.2 * 11) = 3 at each end
        (TrimmedMean(0.0), 0, 1),  # the mean
        (GeometricMedian("uniform", iterations=300, tolerance=0.0), 5, 6),
        (Krum(4), 4, 6),  # 11 > 2 * 4 + 2; six alike are nearer to each other than five honest ones
        (Krum(4, selected=7), 4, 5),  # of 11, of which seven are honest
        (NormClipping(0.5, "uniform"), 11, None),
        (MedianNormClipping("uniform"), 5, 6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Aggregator) else str(value),
)
def test_breakdown_points(aggregator: Aggregator, holds: int, breaks: int | None) -> None:
    assert all(bounded(aggregator, count) for count in range(holds + 1))
    assert breaks is None or not bounded(aggregator, breaks)


def test_orders_of_clients_do_not_matter() -> None:
    rows = torch.randn(5, 6, generator=torch.Generator().manual_seed(3)).double()
    for aggregator in (CoordinateMedian(), TrimmedMean(0.2), Krum(1), GeometricMedian("uniform")):
        found = []
        for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
            aggregator.start()
            aggregator.add(rows[list(order)], torch.ones(5).double())
            found.append(aggregator.result())
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=0, atol=1e-12)
