"""Sizes that differ by a distribution: their bounds and moments, whole classes, and what there is too little of."""

import pytest
import torch
from torch import Tensor

from lfl.data import ClassesPerClientPartitioner, IndexSets, LogNormalPartitioner, UniformSizesPartitioner

LABELS = torch.arange(20_000) % 10


def counts(sets: IndexSets, labels: Tensor = LABELS) -> Tensor:
    sets.check("training", len(labels))
    return sets.label_counts(labels, 10)


@pytest.mark.parametrize("k", [None, 3])
def test_sizes_are_uniform_between_their_bounds(k: int | None) -> None:
    """100 + U[0, 50] of 100 clients: mean 125, standard deviation sqrt((51^2 - 1) / 12) = 14.7; 4 standard errors."""
    sets = UniformSizesPartitioner(100, 50, k).split(LABELS, None, 100, seed=1)
    assert int(sets.sizes.min()) >= 100
    assert int(sets.sizes.max()) <= 150
    assert abs(float(sets.sizes.double().mean()) - 125) < 4 * 14.72 / 10
    assert abs(float(sets.sizes.double().std()) - 14.72) < 4 * 14.72 / 200**0.5
    found = counts(sets)
    if k is not None:
        assert ((found > 0).sum(dim=1) == 3).all()
        assert all(int(row[row > 0].max() - row[row > 0].min()) <= 1 for row in found)
    assert torch.equal(sets.indices, UniformSizesPartitioner(100, 50, k).split(LABELS, None, 100, 1).indices)
    assert UniformSizesPartitioner(7, 0).split(LABELS, None, 10, 0).sizes.tolist() == [7] * 10


def test_what_there_is_too_little_of() -> None:
    with pytest.raises(
        ValueError, match=r"`least=300` and `spread=0` .* need 30000 training examples, there are 20000"
    ):
        UniformSizesPartitioner(300, 0).split(LABELS, None, 100, 0)
    with pytest.raises(ValueError, match="need 2200 training examples of class 0, there are 2000"):
        UniformSizesPartitioner(220, 0, 1).split(LABELS, None, 100, 0)
    with pytest.raises(ValueError, match="`least=0` of UniformSizesPartitioner must be a whole number of at least 1"):
        UniformSizesPartitioner(0)
    with pytest.raises(ValueError, match=r"`sigma=-1.0` of LogNormalPartitioner must be a number of at least 0"):
        LogNormalPartitioner(sigma=-1.0)
    with pytest.raises(ValueError, match="gives class 0 to 30 clients, but it has 20 training examples"):
        LogNormalPartitioner(3).split(LABELS[:200], None, 100, 0)


def test_log_normal_sizes_of_clients_with_few_classes() -> None:
    """Of all classes (k = 10) a client's share of each is exp(sigma z_i) over the sum, to one example a class."""
    sets = LogNormalPartitioner(classes_per_client=10, sigma=0.8).split(LABELS, None, 100, seed=2)
    found = counts(sets)
    assert found.sum() == len(LABELS)
    assert int((found.max(dim=1).values - found.min(dim=1).values).max()) <= 1
    logs = (found.sum(dim=1) - 10).double().clamp(min=1).log()
    # Of a log-normal sample of 100: the standard deviation of the logarithm is sigma, within 4 sigma / sqrt(200).
    assert abs(float(logs.std()) - 0.8) < 4 * 0.8 / 200**0.5
    few = counts(LogNormalPartitioner(classes_per_client=3, sigma=1.0).split(LABELS, None, 100, seed=2))
    assert ((few > 0).sum(dim=1) == 3).all()
    assert few.sum() == len(LABELS)
    sizes = few.sum(dim=1).double()
    assert float(sizes.max() / sizes.median()) > 3
    # Equal shares are ClassesPerClientPartitioner's sizes, to rounding.
    equal = counts(LogNormalPartitioner(2, sigma=0.0).split(LABELS, None, 100, seed=2)).sum(dim=1)
    assert int((equal - counts(ClassesPerClientPartitioner(2).split(LABELS, None, 100, 2)).sum(dim=1)).abs().max()) <= 2
