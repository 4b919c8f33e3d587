"""Weighted means of updates."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lfl.aggregation import MeanAggregator


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
