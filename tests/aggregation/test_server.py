"""The server's optimizer moves x along the aggregate."""

from pathlib import Path

import pytest
import torch
from worlds import QuadraticData, train_quadratic

from lfl.aggregation import Server


def test_server_learning_rate_and_momentum(tmp_path: Path) -> None:
    """SGD(lr) on the negated aggregate: x + lr * aggregate; momentum is FedAvgM, ``m = beta m + aggregate``."""
    sgd = torch.optim.SGD
    half = train_quadratic([], tmp_path, max_rounds=1, server_optimizer=lambda p: sgd(p, lr=0.5))[0]
    whole = train_quadratic([], tmp_path, max_rounds=1)[0]
    torch.testing.assert_close(half.server.vector, whole.server.vector / 2, rtol=0, atol=1e-15)
    data = QuadraticData()
    shrink = (1 - 0.1 * data.curvature) ** 6
    x, m = torch.zeros(12, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    for _ in range(4):
        m = 0.9 * m + ((1 - shrink) * (data.centre - x)).mean(0)
        x = x + m
    momentum = train_quadratic([], tmp_path, max_rounds=4, server_optimizer=lambda p: sgd(p, lr=1.0, momentum=0.9))[0]
    torch.testing.assert_close(momentum.server.vector, x, rtol=0, atol=1e-12)


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
