"""SCAFFOLD: one client, and controls followed by hand."""

from pathlib import Path

import pytest
import torch
from quadratics import RepeatedData
from worlds import Quadratic, mlp, ragged_data, train, train_quadratic

from lfl.callbacks import Scaffold
from lfl.participation import FullParticipation, Participation, UniformParticipation
from lfl.trainer import FederatedTrainer


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


@pytest.mark.parametrize(("participation", "rounds"), [(FullParticipation(), 60), (UniformParticipation(2), 400)])
def test_without_an_aggregator_it_reaches_the_optimum_of_the_mean_over_clients(
    participation: Participation, rounds: int, tmp_path: Path
) -> None:
    """Clients of 3, 1, 4, 1 and 5 examples: ``weighting`` is ``uniform``, and the optimum the one it promises."""
    data = RepeatedData([3, 1, 4, 1, 5], batch_size=5)
    trainer = FederatedTrainer(
        max_rounds=rounds, callbacks=[Scaffold()], participation=participation, local_steps=6, engine="vectorized",
        precision="64-true", accelerator="cpu", check_val_every_n_rounds=1000, default_root_dir=str(tmp_path),
        logger=False, checkpoint=None, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Quadratic(lr=0.3), data)
    assert trainer.run.aggregator.weighting == "uniform"
    assert (trainer.server.vector - data.uniform).norm() < 1e-9
    assert (data.uniform - data.optimum).norm() > 0.5  # that of the mean over examples
