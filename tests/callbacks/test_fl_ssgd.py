"""FL-SSGD: `l=auto` takes the minimiser of the bound."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import GOLDEN_FILES, train

from lfl.callbacks import FLSSGD
from lfl.callbacks.uplink_bound import (
    best_coordinates_channel_sharing,
    best_coordinates_time_sharing,
)
from lfl.participation import FullParticipation
from lfl.problems import RobustRegression
from lfl.problems.base import ProblemData
from lfl.system import ChannelSharing, TimeSharing

GOLDEN = json.loads((GOLDEN_FILES / "fl_ssgd.json").read_text())
N, M, D = GOLDEN["n"], GOLDEN["m"], GOLDEN["d"]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("system", [TimeSharing([100.0, 200.0, 300.0]), ChannelSharing(300.0)])
def test_auto_takes_the_minimiser(system: Any, tmp_path: Path) -> None:
    data = ProblemData(N, M, batch_size=1)
    data.examples = (double(GOLDEN["A"]), double(GOLDEN["y"]))
    callback = FLSSGD("auto", gap=1.0, smoothness=1.0, gradient_bound=1.0)
    options = {"participation": FullParticipation(), "local_steps": 1, "max_rounds": 2, "system": system}
    trainer = train([callback], tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **options)
    bound: Any = (1.0, 1.0, 1.0, [1 / 3] * 3)
    if isinstance(system, TimeSharing):
        expected: Any = best_coordinates_time_sharing(*bound, system.rates, D)
    else:
        expected = best_coordinates_channel_sharing(*bound, D)
    told = train([FLSSGD(expected)], tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **options)
    torch.testing.assert_close(trainer.server.vector, told.server.vector, rtol=1e-12, atol=0)
    assert trainer.ledger.totals == told.ledger.totals
    assert trainer.run.progress.simulated_seconds["uplink_time"] == trainer.summary.last("sim/uplink_time")[0] > 0
    with pytest.raises(ValueError, match="`l=auto` of FLSSGD needs `gap`"):
        FLSSGD("auto")
    with pytest.raises(ValueError, match="needs a `system`"):
        train([callback], tmp_path, RobustRegression(D, 2.0, lr=0.1), data, **{**options, "system": None})
