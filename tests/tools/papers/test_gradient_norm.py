"""The gradient's norm on the toy problem of the SSF paper."""

from pathlib import Path

import pytest
import torch
from worlds import train

from lfl.loggers.csv import read_rows
from lfl.participation import FullParticipation
from lfl.problems import MatrixRegression, MatrixRegressionData
from lfl.storage.folders import METRICS_FILE
from lfl.trainer import FederatedTrainer
from tools.papers.gradient_norm import SQUARE, GradientNorm, quadratic


def test_the_gradient_of_a_quadratic_is_autograds() -> None:
    draws = torch.Generator().manual_seed(0)
    features, targets, point = (torch.randn(*shape, generator=draws).double() for shape in ((7, 3), (7, 2), (3, 2)))
    module = MatrixRegression(3, 2, ridge=0.4).double()
    module.weight.data.copy_(point)
    (gradient,) = torch.autograd.grad(module.training_step((features, targets)), module.weight)
    hessian, moment = quadratic(features, targets, 0.4)
    torch.testing.assert_close(hessian @ point - moment, gradient)


def fit(callback: GradientNorm, folder: Path, rounds: int) -> FederatedTrainer:
    """Gradient descent: one step of all four clients with whole batches, a rate of 0.1."""
    data = MatrixRegressionData(4, 30, 5, 2, batch_size=30)
    options = {"participation": FullParticipation(), "local_steps": 1, "local_sampling": "epochs"}
    return train([callback], folder, MatrixRegression(5, 2, lr=0.1), data, max_rounds=rounds, **options)


def squares(trainer: FederatedTrainer) -> dict[int, float]:
    rows = read_rows(Path(str(trainer.log_dir)) / METRICS_FILE)
    return {number: metrics[SQUARE] for number, metrics in rows if SQUARE in metrics}


def test_norms_are_those_of_gradient_descent_from_zero(tmp_path: Path) -> None:
    """After t steps the gradient is ``(1 - 0.1 H)^t`` times the first."""
    trainer = fit(GradientNorm(every=2), tmp_path, rounds=4)
    data = trainer.data
    assert isinstance(data, MatrixRegressionData)
    features, targets = data.examples
    hessian, moment = quadratic(features, targets, 0.1)
    step = torch.eye(5).double() - 0.1 * hessian
    expected = {
        t: float((torch.linalg.matrix_power(step, t) @ moment).square().sum() / moment.square().sum()) for t in (2, 4)
    }
    assert squares(trainer) == pytest.approx(expected, rel=1e-12)


def test_a_run_ends_where_the_norm_is_small(tmp_path: Path) -> None:
    found = squares(fit(GradientNorm(least=1e-2), tmp_path, rounds=200))
    *before, last = found.values()
    assert len(found) < 200
    assert last <= 1e-2 < min(before)
