"""What late updates count, by hand; whole runs are in tests/contract/test_late.py."""

from collections.abc import Callable

import pytest
import torch

from lfl.aggregation import ConstantStaleness, FedAsync, FedBuff, HingeStaleness, MeanAggregator, PolynomialStaleness
from lfl.aggregation.aggregator import check_adds_up

LATE = torch.tensor([0, 1, 3, 8])
ROWS = torch.tensor([[1.0, 0.0], [2.0, -4.0], [6.0, 2.0], [3.0, 9.0]], dtype=torch.float64)
START = torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 0.0], [1.0, -2.0]], dtype=torch.float64)
SERVER = torch.ones(2, dtype=torch.float64)


def test_factors() -> None:
    assert ConstantStaleness().factors(LATE).tolist() == [1.0] * 4
    assert PolynomialStaleness().factors(LATE).tolist() == pytest.approx([1.0, 2**-0.5, 0.5, 1 / 3], abs=1e-15)
    assert PolynomialStaleness(2.0).factors(LATE).tolist() == pytest.approx([1.0, 1 / 4, 1 / 16, 1 / 81], abs=1e-15)
    # a (s - b) + 1 of a = 10, b = 4, and of a = 0.5, b = 1.
    assert HingeStaleness().factors(LATE).tolist() == pytest.approx([1.0, 1.0, 1.0, 1 / 41], abs=1e-15)
    assert HingeStaleness(0.5, 1.0).factors(LATE).tolist() == pytest.approx([1.0, 1.0, 1 / 2, 1 / 4.5], abs=1e-15)


def test_fedbuff_divides_by_their_number_and_not_by_what_they_count() -> None:
    """(1, 0), (2, -4) / 2, (6, 2) / 4 and (3, 9) / 9, their sum divided by 4."""
    aggregator = FedBuff(PolynomialStaleness(1.0))
    rows = aggregator.on_arrival(ROWS, LATE, START, SERVER)
    aggregator.add(rows, aggregator.weights(torch.tensor([5, 1, 1, 9])))
    expected = torch.tensor([1 + 1 + 1.5 + 1 / 3, -2 + 0.5 + 1.0], dtype=torch.float64) / 4
    torch.testing.assert_close(aggregator.result(), expected, rtol=0, atol=1e-15)


def test_fedasync_goes_to_the_clients_model_from_x_as_it_is() -> None:
    """y = start + row is (2, 1), (2, -3), (8, 2), (4, 7); alpha s (y - x) is (1, 0) / 2, (1, -4) / 4, ..."""
    aggregator = FedAsync(0.5, PolynomialStaleness(1.0))
    start = START.index_put((torch.tensor([0]),), SERVER)  # who is not late has started from x
    rows = aggregator.on_arrival(ROWS, LATE, start, SERVER)
    expected = [[0.5, 0.0], [0.25, -1.0], [7 / 8, 1 / 8], [3 / 18, 6 / 18]]
    torch.testing.assert_close(rows, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
    aggregator.add(rows, aggregator.weights(torch.tensor([5, 1, 1, 9])))
    torch.testing.assert_close(aggregator.result(), rows.mean(dim=0), rtol=0, atol=1e-15)


def test_nobody_late_is_the_mean_to_the_bit() -> None:
    rows = torch.randn(4, 7)
    plain, buffered = MeanAggregator("uniform"), FedBuff()
    now = torch.zeros(4, dtype=torch.int64)
    for aggregator in (plain, buffered):
        here = aggregator.on_arrival(rows, now, torch.zeros(4, 7), torch.zeros(7))
        aggregator.add(here, aggregator.weights(torch.ones(4)))
    assert torch.equal(plain.result(), buffered.result())
    assert plain.on_arrival(rows, LATE, torch.zeros(4, 7), torch.zeros(7)) is rows


@pytest.mark.parametrize("aggregator", [FedAsync(), FedBuff()])
def test_processes_exchange_sums(aggregator: FedAsync | FedBuff) -> None:
    check_adds_up(aggregator, 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAsync(0.0), "`alpha=0.0` of FedAsync must be a number greater than 0."),
        (lambda: FedAsync(-0.5), "`alpha=-0.5` of FedAsync must be a number greater than 0."),
        (lambda: FedAsync(1.5), "`alpha=1.5` of FedAsync is a share of the new model, and must be at most 1."),
        (lambda: PolynomialStaleness(-1.0), "`a=-1.0` of PolynomialStaleness must be a number of at least 0."),
        (lambda: HingeStaleness(-1.0), "`a=-1.0` of HingeStaleness must be a number of at least 0."),
        (lambda: HingeStaleness(1.0, -1.0), "`b=-1.0` of HingeStaleness must be a number of at least 0."),
        (lambda: FedBuff(weighting="size"), "`weighting=size` must be one of auto, examples, uniform."),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_cannot_be(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # its text is compared
        make()
    assert str(raised.value) == message
