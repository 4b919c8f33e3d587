"""Federated matrix regression: its objective, its optimum, its data."""

from pathlib import Path

import pytest
import torch
from worlds import train

from lfl.participation import FullParticipation
from lfl.problems import MatrixRegression, MatrixRegressionData

SMALL = {"num_clients": 4, "examples_per_client": 30, "dim": 5, "outputs": 2}


def test_the_objective_by_hand() -> None:
    """X = 1, A = (1; 3), B = (0; 1): squares 1 and 4, so 5 / 4; and ridge 0.5 / 2 of X^2."""
    module = MatrixRegression(1, 1, ridge=0.5)
    module.weight.data.fill_(1.0)
    assert module.training_step((torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [1.0]]))).item() == 1.25 + 0.25


def test_at_the_optimum_the_gradient_is_zero() -> None:
    data = MatrixRegressionData(**SMALL)
    data.setup("fit")
    module = MatrixRegression(5, 2).double()
    module.weight.data = module.optimum(*data.examples)
    (gradient,) = torch.autograd.grad(module.training_step(data.examples), module.weight)
    assert gradient.abs().max() < 1e-13


def test_data_are_as_the_model_says() -> None:
    """Without noise X is found; clients' mean features have the asked for spread, within 5 standard errors."""
    data = MatrixRegressionData(400, 10, 5, 2, heterogeneity=2.0, noise=0.0)
    data.setup("fit")
    features, targets = data.examples
    truth = torch.linalg.lstsq(features, targets).solution
    torch.testing.assert_close(features @ truth, targets, rtol=0, atol=1e-10)
    means = features.view(400, 10, 5).mean(dim=1)
    variance = 2.0**2 + 1 / 10
    assert float(means.var()) == pytest.approx(variance, abs=5 * variance * (2 / 2000) ** 0.5)


def test_the_error_is_relative_to_the_optimum(tmp_path: Path) -> None:
    options = {"participation": FullParticipation(), "local_steps": 1}
    start, end = (
        train([], tmp_path, MatrixRegression(5, 2, lr=0.1), MatrixRegressionData(**SMALL, batch_size=30),
              max_rounds=rounds, check_val_every_n_rounds=rounds, **options).summary.last("val_error")[0]
        for rounds in (1, 300)
    )  # fmt: skip
    assert end < 1e-6 < start < 1
