"""FL-SSVRG: what clients store."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from worlds import GOLDEN_FILES, train

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
