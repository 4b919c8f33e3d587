"""SRPFL's Lemma B.1 against an independent reference."""

import itertools
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from worlds import GOLDEN_FILES

from lfl.problems.doubling import DoublingPoints, fastest_seconds
from lfl.system import ExponentialSpeeds

GOLDEN = json.loads((GOLDEN_FILES / "srpfl_linear.json").read_text())
LEMMA = json.loads((GOLDEN_FILES / "lemma_b1.json").read_text())["cases"]
D, K, N, M = GOLDEN["d"], GOLDEN["k"], GOLDEN["N"], GOLDEN["m"]


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: Tensor, expected: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(actual, double(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("case", LEMMA, ids=lambda case: f"N={case['N']},C={case['C']}")
def test_doubling_points_of_the_reference(case: dict[str, Any]) -> None:
    points = DoublingPoints(case["a"], case["n0"], case["N"], case["C"], case["lam"])
    target = case["eps"]
    assert points.sizes == case["sizes"]
    close(double(points.seconds), case["E_T"])
    close(double(points.floors), case["floors"])
    close(double(points.points[1:]), case["X"][1:])
    close(double(points.rounds(target)), case["t_real"])
    assert points.whole_rounds(target) == case["integer_rounds"]
    assert points.srpfl_seconds(target) == pytest.approx(case["E_T_SRPFL"], abs=1e-10)
    assert points.fedrep_seconds(target) == pytest.approx(case["E_T_FedRep"], abs=1e-10)
    assert points.speedup(target) == pytest.approx(case["speedup"], abs=1e-10)
    for stage, rounds in enumerate(case["t_eq203"]):
        if rounds is not None:
            full = points.rounds_between(stage, points.points[stage], points.points[stage + 1])
            assert full == pytest.approx(rounds, abs=1e-10)


def test_a_stage_is_the_one_with_most_progress_per_second() -> None:
    """In 200 distances between the first point and the last floor."""
    points = DoublingPoints(0.1, 4, 64, communication=0.3)
    stages = range(len(points.sizes))
    for step in range(1, 200):
        distance = points.floors[-1] * (points.points[1] * 1.2 / points.floors[-1]) ** (step / 200)
        gains = [
            (1 - points.factor) * (distance - points.floors[r]) / (points.seconds[r] + points.communication)
            for r in stages
        ]
        best = max(stages, key=gains.__getitem__)
        assert best == sum(distance <= point for point in points.points[1:])


def test_expected_times_of_exponential_speeds() -> None:
    """The mean over 4,000 rounds within 5 standard errors; the n-th of N has variance sum 1/i^2."""
    times = torch.stack(
        [
            ExponentialSpeeds(rates=2.0, dynamic=True).compute_seconds(torch.arange(8), n, 0).sort().values
            for n in range(4000)
        ]
    )
    for count in (1, 4, 8):
        spread = math.sqrt(sum(i**-2 for i in range(8 - count + 1, 9))) / 2
        mean = float(times[:, count - 1].mean())
        assert mean == pytest.approx(fastest_seconds(count, 8, rate=2.0), abs=5 * spread / math.sqrt(4000))


def test_a_measured_floor_moves_all_floors_and_points() -> None:
    theorem = DoublingPoints(0.1, 4, 64)
    measured = DoublingPoints(0.1, 4, 64, first_floor=0.2, start=0.8)
    scale = 0.2 / theorem.floors[0]
    for ours, theirs in itertools.chain(
        zip(measured.floors, theorem.floors, strict=True),
        zip(measured.points[1:], theorem.points[1:], strict=True),
    ):
        assert ours == pytest.approx(scale * theirs, rel=1e-14)


def test_points_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"`contraction=1\.0` must be in"):
        DoublingPoints(1.0, 2, 4)
    with pytest.raises(ValueError, match=r"`initial=5` must be in \[1, 4\]"):
        DoublingPoints(0.1, 5, 4)
    with pytest.raises(ValueError, match=r"64 clients stall at a distance of 0\.514, before 0\.1"):
        DoublingPoints(0.1, 4, 64).fedrep_seconds(0.1)
