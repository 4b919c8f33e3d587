"""FL-SSVRG: what clients store."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from two_clients import Points
from worlds import GOLDEN_FILES, Quadratic, train, train_quadratic

from lfl.callbacks import FLSSVRG
from lfl.participation import FullParticipation
from lfl.problems import RobustRegression
from lfl.problems.base import ProblemData

GOLDEN = json.loads((GOLDEN_FILES / "fl_ssgd.json").read_text())
N, M, D = GOLDEN["n"], GOLDEN["m"], GOLDEN["d"]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_storage_is_the_sum_of_the_stored_sizes(tmp_path: Path) -> None:
    data = ProblemData(N, M, batch_size=1)
    data.examples = (double(GOLDEN["A"]), double(GOLDEN["y"]))
    options = {"participation": FullParticipation(), "local_steps": 1, "max_rounds": 5, "logger": False}
    trainer = train([FLSSVRG(2.0, 3.0, 4)], tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **options)
    assert trainer.store.nbytes == N * (3 * 2) * 8  # K - 1 = 3 rounds of 2 floats, not 3 * 6


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_with_all_coordinates_and_whole_batches_it_is_gradient_descent(
    decay: float, engine: str, tmp_path: Path
) -> None:
    """Epochs of three rounds: full gradients and stored ones in turns."""
    points, module = Points(), Quadratic(lr=0.1, weight_decay=decay)
    options = {"local_steps": 1, "max_rounds": 8, "engine": engine, "module": module}
    _, data = train_quadratic([FLSSVRG(12.0, 12.0, 3), points], tmp_path, **options)
    x = torch.zeros(12, dtype=torch.float64)
    for found in points.found:
        x = x - 0.1 * ((data.curvature * (x - data.centre)).mean(dim=0) + decay * x)
        torch.testing.assert_close(found, x, rtol=0, atol=1e-12)


def test_several_local_steps_are_refused(tmp_path: Path) -> None:
    message = r"FLSSVRG keeps gradients of single steps, but clients take up to 6: use `local_steps=1`\."
    with pytest.raises(ValueError, match=message):
        train_quadratic([FLSSVRG(12.0, 12.0, 3)], tmp_path)
