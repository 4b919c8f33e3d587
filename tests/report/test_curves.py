"""Means over seeds, and what is drawn of them."""

from pathlib import Path

import numpy as np
import pytest
from run_folders import config_of, make_comparison, make_run

from lfl.report.curves import Curve, curve_of
from lfl.report.groups import compare


def test_mean_and_range_over_seeds(tmp_path: Path) -> None:
    fedavg, _ = compare([make_comparison(tmp_path)]).groups
    curve = curve_of(fedavg, "val_acc")
    assert curve is not None
    assert (curve.rounds.tolist(), curve.seeds) == ([1, 3, 4], 2)
    assert curve.mean.tolist() == pytest.approx([0.1, 0.5, 0.5])
    assert [curve.low.tolist()[-1], curve.high.tolist()[-1]] == [0.4, 0.6]
    assert {name: axis.tolist() for name, axis in curve.axes.items()} == {
        "round": [1, 3, 4],
        "mb": [3, 9, 12],
        "mb_up": [1, 3, 4],
        "mb_down": [2, 6, 8],
        "sim": [2, 6, 8],
        "seconds": [0.5, 1.5, 2.0],
    }
    assert curve_of(fedavg, "other") is None


def test_only_rounds_that_all_runs_have(tmp_path: Path) -> None:
    make_run(tmp_path / "a", (0.1, 0.2, 0.3, None), config_of(seed=0))
    make_run(tmp_path / "b", (None, 0.4, 0.5, 0.6), config_of(seed=1))
    curve = curve_of(compare([tmp_path]).groups[0], "val_acc")
    assert curve is not None
    assert curve.rounds.tolist() == [2, 3]
    assert curve.mean.tolist() == pytest.approx([0.3, 0.4])


def test_thinning_keeps_every_kth_and_the_last() -> None:
    rounds = np.arange(1, 1001)
    curve = Curve(rounds, rounds / 2, rounds / 4, rounds, {"mb": rounds * 3}, seeds=2)
    thin = curve.thinned(300)
    assert thin.rounds.tolist()[:3] == [1, 5, 9]
    assert thin.rounds[-1] == 1000
    assert len(thin.rounds) <= 301
    assert thin.axes["mb"].tolist() == [3 * n for n in thin.rounds]
    assert curve.thinned(1000) is curve
