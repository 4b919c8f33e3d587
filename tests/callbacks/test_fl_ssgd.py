"""FL-SSGD: `l=auto` takes the minimiser of the bound."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quadratics import quadratic_data
from torch import Tensor
from worlds import GOLDEN_FILES, Quadratic, train, train_quadratic

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


def test_the_mean_over_all_subsets_is_the_update(tmp_path: Path) -> None:
    """D = 4, l = 2: six clients of one update, each with another of the six subsets of two coordinates."""

    class AllSubsets(FLSSGD):
        def masks(self, cohort, dim):
            subsets = list(itertools.combinations(range(dim), 2))
            chosen = torch.tensor([subsets[client] for client in cohort.ids.tolist()])
            return torch.zeros(len(cohort), dim, dtype=torch.bool).scatter(1, chosen, True)

    centre = [[1.0, -2.0, 0.5, 3.0]] * 6
    paths = []
    for stack in ([], [AllSubsets(2.0)]):
        data = quadratic_data([[1.0] * 4] * 6, centre)
        options = {"module": Quadratic(dim=4), "data": data, "max_rounds": 1, "engine": "vectorized"}
        trainer, _ = train_quadratic(stack, tmp_path, **options)
        paths.append(trainer.server.vector)
    torch.testing.assert_close(paths[1], paths[0], rtol=0, atol=1e-14)
    assert trainer.ledger.totals["up"] == 6 * 2 * 64
