"""Means without the largest and smallest values."""

import pytest
import torch

from lfl.aggregation import TrimmedMean


def trimmed(share: float, values: list[float]) -> float:
    aggregator = TrimmedMean(share)
    aggregator.add(torch.tensor(values)[:, None], torch.ones(len(values)).double())
    return aggregator.result().item()


def test_means_by_hand() -> None:
    """Of 1, 2, 4, 9, 1000: without one at each end (2 + 4 + 9) / 3 = 5, without two 4."""
    values = [9.0, 1.0, 1000.0, 4.0, 2.0]
    assert trimmed(0.2, values) == pytest.approx(5.0)
    assert trimmed(0.4, values) == 4.0
    assert trimmed(0.0, values) == pytest.approx(1016 / 5)
    assert trimmed(0.1, values) == pytest.approx(5.0)  # rounded up


def test_where_clients_dropped_out_the_middle_is_left() -> None:
    """0.45 of 4 would be 2 at each end."""
    assert trimmed(0.45, [1.0, 2.0, 4.0, 100.0]) == 3.0
    assert trimmed(0.45, [7.0]) == 7.0


def test_too_few_participants_and_shares_that_cannot_be_are_refused() -> None:
    TrimmedMean(0.2).check(10)
    TrimmedMean(0.45).check(None)
    with pytest.raises(ValueError, match=r"`share=0\.45` of TrimmedMean leaves nothing of 4 participants, without 2"):
        TrimmedMean(0.45).check(4)
    with pytest.raises(ValueError, match=r"`share=0\.5` of TrimmedMean is left out at each end, and must be less"):
        TrimmedMean(0.5)
    with pytest.raises(ValueError, match=r"`share=-0\.1` of TrimmedMean must be a number of at least 0"):
        TrimmedMean(-0.1)
