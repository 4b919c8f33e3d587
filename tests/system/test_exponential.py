"""Speeds from exponential distributions: their order statistics, and what stays from round to round."""

import pytest
import torch

from lfl.system import ExponentialSpeeds, ShiftedExponentialSpeeds


def test_order_statistics_of_the_speeds() -> None:
    """The n-th fastest of 100 unit exponentials takes sum_{j=101-n..100} 1/j: 0.105, 0.222, 0.508, 1.590, 5.187."""
    system, ids = ExponentialSpeeds(dynamic=True), torch.arange(100)
    draws = torch.stack([system.compute_seconds(ids, number, 0) for number in range(1, 2001)]).sort(dim=1).values
    for n, expected in ((10, 0.105), (20, 0.222), (40, 0.508), (80, 1.590), (100, 5.187)):
        error = float(draws[:, n - 1].std()) / len(draws) ** 0.5
        assert float(draws[:, n - 1].mean()) == pytest.approx(expected, abs=4 * error + 5e-4)


def test_fixed_speeds_stay_and_ranges_are_kept() -> None:
    ids = torch.arange(2000)
    fixed = ExponentialSpeeds(rates=2.0)
    assert torch.equal(fixed.compute_seconds(ids, 1, 0), fixed.compute_seconds(ids, 9, 0))
    assert float(fixed.compute_seconds(ids, 1, 0).mean()) == pytest.approx(0.5, abs=4 * 0.5 / 2000**0.5)
    means = ExponentialSpeeds(means=[1.0, 100.0], dynamic=True)
    drawn = torch.stack([means.compute_seconds(ids[:50], number, 0) for number in range(2000)]).mean(dim=0)
    assert float(drawn.min()) >= 1.0
    assert float(drawn.max()) < 100 * 1.1


def test_shifted_speeds_are_the_same_draws_after_the_shift() -> None:
    """``a + m E_i``: E_i is what ExponentialSpeeds draws, fixed or in every round."""
    ids = torch.arange(50)
    for dynamic in (False, True):
        shifted = ShiftedExponentialSpeeds(shift=2.0, mean=3.0, dynamic=dynamic)
        plain = ExponentialSpeeds(means=3.0, dynamic=dynamic)
        for number in (1, 7):
            expected = 2.0 + plain.compute_seconds(ids, number, 5)
            torch.testing.assert_close(shifted.compute_seconds(ids, number, 5), expected, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="`mean=0` of ShiftedExponentialSpeeds must be a number greater than 0"):
        ShiftedExponentialSpeeds(mean=0)
    with pytest.raises(ValueError, match="`shift=-1` of ShiftedExponentialSpeeds must be a number of at least 0"):
        ShiftedExponentialSpeeds(shift=-1)
