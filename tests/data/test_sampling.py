"""Examples sorted by class, and shares turned into whole examples."""

import numpy as np
import pytest
import torch

from lfl.data.sampling import ExamplesByClass, compact_labels, deal_by_mixes, deal_by_shares, log_gamma


def test_shuffled_examples_are_sorted_by_class() -> None:
    labels = torch.tensor([7, 3, 7, 3, 3, 9])
    found = ExamplesByClass.shuffled(labels, torch.Generator().manual_seed(0))
    assert sorted(found.order.tolist()) == list(range(6))
    assert labels[found.order].tolist() == [3, 3, 3, 7, 7, 9]
    assert found.classes.tolist() == [0, 0, 0, 1, 1, 2]
    assert found.ranks.tolist() == [0, 1, 2, 0, 1, 0]
    assert (found.counts.tolist(), found.starts.tolist()) == ([3, 2, 1], [0, 3, 5])


def test_a_class_without_examples_counts_zero() -> None:
    found = ExamplesByClass.shuffled(torch.tensor([2, 0, 2]), torch.Generator().manual_seed(0), num_classes=4)
    assert found.classes.tolist() == [0, 2, 2]
    assert found.counts.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    ("start", "clients"),
    [
        (0.0, [0, 0, 2, 2]),  # points 0, 1/4, 2/4, 3/4; the stretches end at 1/2, 1/2 and 1
        (0.5, [0, 0, 2, 2]),
        (0.999, [0, 0, 2, 2]),
    ],
)
def test_points_on_a_line_of_shares(start: float, clients: list[int]) -> None:
    shares = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    assert deal_by_shares(shares, 4, start).tolist() == clients


def test_a_share_is_rounded_up_or_down_by_the_start() -> None:
    """Shares 1/3 and 2/3 of two examples: points s/2 and (1 + s)/2 against the edge 1/3."""
    shares = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert deal_by_shares(shares, 2, 0.0).tolist() == [0, 1]
    assert deal_by_shares(shares, 2, 0.7).tolist() == [1, 1]
    assert deal_by_shares(shares, 0, 0.0).tolist() == []


def test_labels_are_numbered_in_ascending_order() -> None:
    values, index = compact_labels(torch.tensor([5, -1, 5, 8]))
    assert (values.tolist(), index.tolist()) == ([-1, 5, 8], [1, 0, 1, 2])


def test_logarithms_of_gamma_variates() -> None:
    rng = np.random.default_rng(0)
    drawn = log_gamma(rng, 2.0, 20_000).exp()
    assert float(drawn.mean()) == pytest.approx(2, rel=0.03)
    assert float(drawn.var()) == pytest.approx(2, rel=0.06)
    assert log_gamma(rng, 1e-6, 100).isfinite().all()  # exp of which would be 0


def test_clients_draw_by_their_mixes_until_a_class_has_run_out() -> None:
    labels = torch.arange(40) % 2
    by_class = ExamplesByClass.shuffled(labels, torch.Generator().manual_seed(0))
    asked = []

    def log_mix_of(client: int) -> torch.Tensor:
        asked.append(client)
        return torch.tensor([0.0, -1000.0] if client < 3 else [-1000.0, 0.0])

    owners = deal_by_mixes(by_class, 4, np.random.default_rng(0), log_mix_of)
    counts = torch.stack([torch.bincount(labels[owners == client], minlength=2) for client in range(4)])
    assert sorted(asked) == [0, 1, 2, 3]
    assert counts.sum(1).tolist() == [10] * 4
    # The two of the first three who come first have all of class 0; the other one has what is left.
    assert sorted(counts[:3, 0].tolist()) == [0, 10, 10]
    assert counts[3].tolist() == [0, 10]
