"""SCAFFOLD: one client, and controls followed by hand."""

from pathlib import Path

import pytest
import torch
from worlds import Quadratic, mlp, ragged_data, train, train_quadratic

from lfl.callbacks import Scaffold
from lfl.participation import FullParticipation


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_one_client_is_sgd(option: str, tmp_path: Path) -> None:
    """N=1: c = c_i, so every correction is zero; option I's c_i+ is the same number for both."""
    one = {"participation": FullParticipation(), "max_rounds": 4}
    data = [ragged_data(num_clients=1) for _ in range(2)]
    plain = train([], tmp_path, mlp(), data[0], **one)
    scaffold = train([Scaffold(option)], tmp_path, mlp(), data[1], **one)
    torch.testing.assert_close(scaffold.server.vector, plain.server.vector, rtol=0, atol=1e-12)


def test_scaffold_control_is_the_mean_local_gradient(tmp_path: Path) -> None:
    """Plain SGD, option II: c_i+ is the mean of the K gradients, here of a quadratic followed by hand."""
    trainer, data = train_quadratic([Scaffold()], tmp_path, max_rounds=1)
    rows = trainer.store.gather("scaffold/control", torch.arange(5))
    y, total = torch.zeros(5, 12, dtype=torch.float64), torch.zeros(5, 12, dtype=torch.float64)
    for _ in range(6):
        gradient = data.curvature * (y - data.centre)
        total, y = total + gradient, y - 0.1 * gradient
    torch.testing.assert_close(rows, total / 6, rtol=0, atol=1e-13)


def test_scaffold_with_momentum_takes_the_weighted_mean_gradient(tmp_path: Path) -> None:
    """Under momentum rho movement is ``-eta sum_k a_k g_k`` with a_k = (1 - rho^(K-k)) / (1 - rho), k = 0..K-1."""
    trainer, data = train_quadratic([Scaffold()], tmp_path, max_rounds=1, module=Quadratic(momentum=0.9))
    y, velocity = torch.zeros(5, 12, dtype=torch.float64), torch.zeros(5, 12, dtype=torch.float64)
    weights = [(1 - 0.9 ** (6 - k)) / 0.1 for k in range(6)]
    mean = torch.zeros_like(y)
    for weight in weights:
        gradient = data.curvature * (y - data.centre)
        mean += weight / sum(weights) * gradient
        velocity = 0.9 * velocity + gradient
        y = y - 0.1 * velocity
    torch.testing.assert_close(trainer.store.gather("scaffold/control", torch.arange(5)), mean, rtol=0, atol=1e-12)
