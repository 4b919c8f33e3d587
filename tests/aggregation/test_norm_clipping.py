"""Means of shortened updates."""

import pytest
import torch

from lfl.aggregation import Aggregator, MeanAggregator, MedianNormClipping, NormClipping
from lfl.aggregation.norm_clipping import shrinkage

ROWS = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0], [-30.0, 40.0]], dtype=torch.float64)  # norms 5, 1, 0, 50


def clipped(aggregator: Aggregator, sizes: list[int]) -> list[float]:
    aggregator.start()
    aggregator.add(ROWS, aggregator.weights(torch.tensor(sizes)))
    return aggregator.result().tolist()


def test_a_threshold_by_hand() -> None:
    """S = 2.5: (1.5, 2), (0, 1), (0, 0), (-1.5, 2), and nothing else of the fourth client's forty."""
    assert clipped(NormClipping(2.5, "uniform"), [1, 1, 1, 1]) == pytest.approx([0.0, 1.25])
    assert clipped(NormClipping(2.5), [1, 1, 1, 5]) == pytest.approx([-6 / 8, 13 / 8])


def test_the_median_of_the_norms_by_hand() -> None:
    """The median of 0, 1, 5, 50 is 3: (1.8, 2.4), (0, 1), (0, 0), (-1.8, 2.4)."""
    assert clipped(MedianNormClipping("uniform"), [1, 1, 1, 1]) == pytest.approx([0.0, 5.8 / 4])
    assert clipped(MedianNormClipping(), [1, 1, 1, 5]) == pytest.approx([-7.2 / 8, 15.4 / 8])


def test_a_threshold_above_all_norms_is_the_mean() -> None:
    assert clipped(NormClipping(1e3), [1, 2, 3, 4]) == pytest.approx(clipped(MeanAggregator(), [1, 2, 3, 4]))


def test_zero_has_nothing_to_shorten() -> None:
    assert shrinkage(torch.tensor([0.0, 2.0]), 0.0).tolist() == [1.0, 0.0]
    aggregator = MedianNormClipping()
    aggregator.add(torch.zeros(3, 2), torch.ones(3).double())
    assert aggregator.result().tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"`threshold=0\.0` of NormClipping must be a number greater than 0"):
        NormClipping(0.0)
