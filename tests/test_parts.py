"""Small parts: the layout, participation, aggregation, the server."""

import math

import pytest
import torch
from conftest import mlp
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lfl.aggregation import MeanAggregator, Server
from lfl.client.layout import ParameterLayout
from lfl.participation import FixedParticipation, FullParticipation, UniformParticipation


def test_layout_views_share_memory_and_keep_leading_dimensions() -> None:
    layout = ParameterLayout.of_parameters(mlp())
    flat = torch.arange(2.0 * layout.dim).reshape(2, layout.dim)
    views = layout.views(flat)
    views["backbone.head.bias"][1, 0] = -1
    assert flat[1, layout.slices["backbone.head.bias"].start] == -1
    assert torch.equal(layout.flatten(views), flat)
    assert layout.spans(layout.names) == [slice(0, layout.dim)]
    assert layout.spans(layout.names[1:2]) == [layout.slices[layout.names[1]]]
    assert int(layout.select("*bias").sum()) == 12 + 4
    with pytest.raises(ValueError, match="'nothing' matches no parameter; the names are: backbone"):
        layout.select("nothing")


def test_layout_refuses_nothing_to_train_and_mixed_types() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        ParameterLayout.of_parameters(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match=r"share one dtype, found \['torch.float32', 'torch.float64'\]"):
        ParameterLayout.of_parameters(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()]))


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 50))
def test_uniform_participation_is_distinct_sorted_and_addressed(clients: int, count: int, number: int) -> None:
    count = min(count, clients)
    chosen = UniformParticipation(count).select(number, clients, seed=3)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == count
    assert chosen.min() >= 0
    assert chosen.max() < clients
    assert torch.equal(chosen, UniformParticipation(count).select(number, clients, seed=3))


def test_uniform_participation_is_uniform() -> None:
    """Each of 20 clients is drawn in a round with probability 1/4; 4000 rounds, 5 standard errors."""
    counts = torch.zeros(20)
    for number in range(4000):
        counts[UniformParticipation(0.25).select(number, 20, 0)] += 1
    assert ((counts / 4000 - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / 4000)).all()


@pytest.mark.parametrize("count", [0, -3, 0.0, 1.5, -0.1])
def test_a_count_or_share_that_cannot_be(count: float) -> None:
    with pytest.raises(ValueError, match=f"`clients_per_round={count}`"):
        UniformParticipation(count)


def test_participation_checks_the_number_of_clients() -> None:
    with pytest.raises(ValueError, match="`clients_per_round=11` but the data module has 10 clients"):
        UniformParticipation(11).check(10)
    with pytest.raises(ValueError, match=r"names clients \[10\], but the ids are 0 to 9"):
        FixedParticipation([[1], [10]]).check(10)
    with pytest.raises(ValueError, match="twice in round 2"):
        FixedParticipation([[1], [3, 3]])
    with pytest.raises(ValueError, match="no round empty"):
        FixedParticipation([[1], []])
    assert FixedParticipation([[2, 1], [0]]).select(3, 3, 0).tolist() == [1, 2]
    assert FullParticipation().select(1, 3, 0).tolist() == [0, 1, 2]


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


def test_server_moves_along_the_update() -> None:
    server = Server(torch.tensor([1.0, 2.0]), lambda p: torch.optim.SGD(p, lr=0.5))
    before = server.vector.clone()
    server.step(torch.tensor([2.0, -2.0]))
    assert server.vector.tolist() == [2.0, 1.0]
    assert before.tolist() == [1.0, 2.0]
    assert server.is_plain_sgd
    assert not Server(before, lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)).is_plain_sgd
    assert not Server(before, lambda p: torch.optim.Adam(p)).is_plain_sgd


def test_adagrad_on_the_server_is_fedadagrad() -> None:
    """``v = tau^2 + sum Delta^2``, ``x += lr Delta / (sqrt(v) + tau)``: by hand, Delta = 3 then 4, tau = 0, lr = 1."""
    server = Server(torch.zeros(1), lambda p: torch.optim.Adagrad(p, lr=1.0, eps=0.0))
    server.step(torch.tensor([3.0]))
    assert server.vector.item() == pytest.approx(1.0)
    server.step(torch.tensor([4.0]))
    assert server.vector.item() == pytest.approx(1.0 + 4 / 5)
