"""The mean direction with the mean of the norms."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lfl.aggregation import MeanAggregator, NormalizedReaggregation


def aggregate(rows: Tensor, weighting: Any = "uniform", sizes: Tensor | None = None) -> Tensor:
    aggregator = NormalizedReaggregation(weighting)
    aggregator.start()
    weights = aggregator.weights(torch.ones(len(rows)).long() if sizes is None else sizes)
    for row, weight in zip(rows.split(2), weights.split(2), strict=True):
        aggregator.add(row, weight)
    return aggregator.result()


def test_orthogonal_updates_of_one_length_are_stretched_by_the_root_of_their_number() -> None:
    torch.testing.assert_close(aggregate(torch.eye(9)), math.sqrt(9) * torch.eye(9).double().mean(dim=0))


def test_equal_updates_and_a_single_one_are_the_mean_and_opposite_ones_are_zero() -> None:
    row = torch.randn(1, 7, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(aggregate(row), row[0], rtol=1e-15, atol=0)
    torch.testing.assert_close(aggregate(row.repeat(5, 1)), row[0], rtol=1e-15, atol=0)
    assert torch.equal(aggregate(torch.cat([row, -row])), torch.zeros(7).double())
    assert torch.equal(aggregate(torch.zeros(3, 7)), torch.zeros(7).double())


def test_direction_norm_scale_and_order() -> None:
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)).double()
    found = aggregate(rows)
    torch.testing.assert_close(found.norm(), rows.norm(dim=1).mean())
    torch.testing.assert_close(found / found.norm(), rows.mean(dim=0) / rows.mean(dim=0).norm())
    torch.testing.assert_close(aggregate(rows.flip(0)), found, rtol=0, atol=1e-15)
    torch.testing.assert_close(aggregate(3.5 * rows), 3.5 * found)
    sizes = torch.tensor([1, 2, 3, 4, 5, 6])
    weights = sizes / sizes.sum().double()
    by_size, mean = aggregate(rows, "examples", sizes), weights @ rows
    torch.testing.assert_close(by_size, mean / mean.norm() * (weights @ rows.norm(dim=1)))


def test_weighting_of_the_aggregate_is_uniform_unless_said(tmp_path: Path) -> None:
    assert NormalizedReaggregation().weighting == "uniform"
    assert MeanAggregator().weighting == "auto"
