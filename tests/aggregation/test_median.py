"""The median of every coordinate."""

import torch

from lfl.aggregation import CoordinateMedian


def median(rows: list[list[float]]) -> list[float]:
    aggregator = CoordinateMedian()
    aggregator.add(torch.tensor(rows), torch.ones(len(rows)).double())
    return aggregator.result().tolist()


def test_medians_by_hand() -> None:
    """Of an odd number the middle one, of an even number the mean of the middle two, each coordinate by itself."""
    assert median([[1.0, 9.0], [5.0, -2.0], [2.0, 0.0]]) == [2.0, 0.0]
    assert median([[1.0], [7.0], [2.0], [100.0]]) == [4.5]
    assert median([[3.0]]) == [3.0]


def test_all_clients_count_alike() -> None:
    assert CoordinateMedian().weights(torch.tensor([1, 1000])).tolist() == [1.0, 1.0]
