"""Robust regression against the reference of FL-SSGD."""

import json
from typing import Any

import torch
from torch import Tensor
from worlds import GOLDEN_FILES

from lfl.problems import RobustRegression

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
