"""Label skew in clusters."""

import pytest
import torch

from lfl.data import ClusteredDirichletPartitioner

LABELS = torch.arange(4000) % 10


def mixes(clients: int, **settings: float) -> torch.Tensor:
    sets = ClusteredDirichletPartitioner(**settings).split(LABELS, None, clients, seed=3)  # type: ignore[arg-type]
    assert sets.indices.sort().values.equal(torch.arange(4000))
    assert sets.sizes.max() - sets.sizes.min() <= 1
    counts = sets.label_counts(LABELS, 10)
    return counts / counts.sum(1, keepdim=True)


def test_clients_of_a_cluster_are_alike_and_others_not() -> None:
    # Few examples are asked of what there is, by many clusters: no class runs out before the last clients.
    found = mixes(40, clusters=4, alpha=1.0, beta=1e4)
    distances = torch.cdist(found, found, p=1)
    cluster = torch.arange(40) // 10
    same = cluster[:, None] == cluster
    assert distances[same].mean() < 0.5 * distances[~same].mean()


def test_a_small_beta_makes_clients_of_a_cluster_differ() -> None:
    spreads = []
    for beta in (0.5, 1e4):
        found = mixes(20, clusters=1, alpha=100.0, beta=beta)
        spreads.append(float((found - found.mean(0)).abs().mean()))
    assert spreads[0] > 3 * spreads[1]


def test_the_same_seed_deals_the_same() -> None:
    one, other = (ClusteredDirichletPartitioner().split(LABELS, None, 12, seed=1).indices for _ in range(2))
    assert one.equal(other)
    assert not one.equal(ClusteredDirichletPartitioner().split(LABELS, None, 12, seed=2).indices)


def test_tiny_concentrations_are_dealt_too() -> None:
    assert mixes(8, clusters=4, alpha=1e-3, beta=1e-3).isfinite().all()


def test_values_that_do_not_do() -> None:
    with pytest.raises(ValueError, match=r"`clusters=5` of ClusteredDirichletPartitioner, but `num_clients=4`"):
        ClusteredDirichletPartitioner(clusters=5).split(LABELS, None, 4, seed=0)
    with pytest.raises(ValueError, match=r"`beta=0\.0` of ClusteredDirichletPartitioner must be greater than 0"):
        ClusteredDirichletPartitioner(beta=0.0)
    with pytest.raises(ValueError, match="`clusters=0` of ClusteredDirichletPartitioner"):
        ClusteredDirichletPartitioner(clusters=0)
