"""What targets cost."""

import math
from pathlib import Path

import pytest
from run_folders import config_of, make_comparison, make_run

from lfl.report.costs import Costs, costs_of, spans_decades
from lfl.report.groups import compare
from lfl.report.metrics import Target


def test_costs_by_axis_group_and_target(tmp_path: Path) -> None:
    """FedAvg is at 0.5 after round 3 in both runs, and at 0.6 after round 4 in one of them."""
    groups = compare([make_comparison(tmp_path)]).groups
    costs = costs_of(groups, [Target("val_acc", 0.5, 1), Target("val_acc", 0.6, 1)])
    assert costs["round"]["FedAvg"].values == [[3.0, 3.0], [math.inf, 4.0]]
    assert costs["mb"]["FedAvg"].values == [[9.0, 9.0], [math.inf, 12.0]]
    assert costs["sim"]["Proximal"].reached == [[6.0, 6.0], [6.0, 6.0]]
    assert costs["round"]["FedAvg"].reached == [[3.0, 3.0], [4.0]]
    assert costs["round"]["FedAvg"].missed == [0, 1]


def test_targets_that_nobody_reaches_have_no_costs(tmp_path: Path) -> None:
    make_run(tmp_path / "run_000", config=config_of())
    assert costs_of(compare([tmp_path]).groups, [Target("val_acc", 0.99, 1)]) == {}


@pytest.mark.parametrize(("values", "is_far"), [([1.0, 19.0], False), ([1.0, 20.0], True), ([0.0, 20.0], False)])
def test_costs_that_are_far_apart_need_a_logarithm(values: list[float], is_far: bool) -> None:
    assert spans_decades({"a": Costs([values[:1]]), "b": Costs([[*values[1:], math.inf]])}) is is_far
