"""Robust regression against the reference of FL-SSGD."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import GOLDEN_FILES

from lfl.problems import RobustRegression, RobustRegressionData

GOLDEN = json.loads((GOLDEN_FILES / "fl_ssgd.json").read_text())
N, M, D = GOLDEN["n"], GOLDEN["m"], GOLDEN["d"]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_gradient_of_the_reference() -> None:
    module = RobustRegression(D, GOLDEN["tukey_threshold"], GOLDEN["squared"]).double()
    module.point.data = double(GOLDEN["x_init"])
    total = torch.zeros(D, dtype=torch.float64)
    for device, weight in enumerate(GOLDEN["w"]):
        rows = slice(device * M, (device + 1) * M)
        batch = (double(GOLDEN["A"])[rows], double(GOLDEN["y"])[rows])
        (gradient,) = torch.autograd.grad(module.training_step(batch), module.point)
        total += weight * gradient
    torch.testing.assert_close(total, double(GOLDEN["grad_at_x_init"]), rtol=0, atol=1e-12)


def test_the_loss_by_hand() -> None:
    """Tukey's loss with c = 2 of residuals 0, 1 and 5: 0, 1 - (3/4)^3 = 37/64, and 1."""
    batch = (torch.zeros(3, 1), torch.tensor([0.0, 1.0, 5.0]))
    assert RobustRegression(1, threshold=2.0).training_step(batch).item() == pytest.approx((37 / 64 + 1) / 3)
    squared = RobustRegression(1, threshold=2.0, squared=True).training_step(batch).item()
    assert squared == pytest.approx(((37 / 64) ** 2 + 1) / 3)


@pytest.mark.parametrize(("noise", "power"), [("variance", 0.5), ("std", 1.0)])
def test_noise_grows_with_the_device(noise: str, power: float) -> None:
    """Nine tenths of the residuals of device i = 1.. spread by 0.2 i, the others are far.

    The median of |N(0, s)| is 0.6745 s; its standard error from 3600 examples is 2 %, of which 5 are allowed.
    """
    data = RobustRegressionData(num_clients=3, examples_per_client=4000, dim=2, noise=noise)  # type: ignore[arg-type]
    data.setup("fit")
    features, targets = (part.view(3, 4000, *part.shape[1:]) for part in data.examples)
    for device in range(3):
        truth = torch.linalg.lstsq(features[device], targets[device]).solution
        for _ in range(50):  # least squares without what is far
            near = (targets[device] - features[device] @ truth).abs() < 5
            truth = torch.linalg.lstsq(features[device][near], targets[device][near]).solution
        residuals = (targets[device] - features[device] @ truth).abs()
        spread = (0.2 * (device + 1)) ** power
        assert float(residuals.quantile(0.45)) == pytest.approx(0.6745 * spread, rel=0.1)


def test_repeats_may_share_the_truth() -> None:
    """Two truths give targets that differ by ``<a, x_true - x_true'>``, the same difference whatever the data are."""

    def examples(seed: int, truth_seed: int | None) -> tuple[Tensor, Tensor]:
        data = RobustRegressionData(1, 50, dim=5, seed=seed, truth_seed=truth_seed)
        data.setup("fit")
        return data.examples

    def difference(seed: int, first: int | None, second: int) -> Tensor:
        features, targets = examples(seed, first)
        return torch.linalg.lstsq(features, (targets - examples(seed, second)[1])[:, None]).solution.flatten()

    torch.testing.assert_close(difference(0, 7, 8), difference(1, 7, 8), rtol=0, atol=1e-10)
    assert difference(0, 7, 8).abs().max() > 0.5
    assert (difference(0, None, 8) - difference(1, None, 8)).abs().max() > 0.5
