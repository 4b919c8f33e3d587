"""What the theory says of linear representations, on made-up runs and problems, and a look at two studies."""

import csv
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tools import CONFIGS
from tools.papers import reproduce, srpfl, srpfl_theory
from tools.papers.kept import read

CONFIG = CONFIGS / "problems" / srpfl.CONFIGS[srpfl.SRPFL]


def test_the_contraction_is_that_of_a_geometric_sequence() -> None:
    assert srpfl_theory.contraction(np.array([8.0, 4.0, 2.0, 1.0])) == pytest.approx(0.5, rel=1e-12)
    assert math.isnan(srpfl_theory.contraction(np.array([8.0, 4.0])))


def test_contraction_is_of_the_distance_above_the_stall_while_that_is_clear() -> None:
    """Four rounds with a factor of 0.8, four of 0.5; the ninth is below three times the stall of 0.01."""
    excess = [1.0, 0.8, 0.64, 0.512, 0.256, 0.128, 0.064, 0.032, 0.016]
    run = np.array([0.01 + value for value in excess] + [0.01] * 9)
    assert srpfl_theory.halves(run) == (pytest.approx(0.8, rel=1e-9), pytest.approx(0.5, rel=1e-9))
    never_clear = np.array([0.02] + [0.01] * 9)
    assert all(map(math.isnan, srpfl_theory.halves(never_clear)))


def test_the_theorem_has_the_least_singular_value_of_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads e1, e1, e1, e2 times sqrt(2) have the singular values sqrt(6)/2 and sqrt(2)/2, over sqrt(4) clients.

    So a = 1/8 (1 - 0.8^2) / 2 times 1/2.
    """
    heads = math.sqrt(2) * torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    monkeypatch.setattr(srpfl.Problem, "data", lambda self, seed: SimpleNamespace(heads=heads))
    found = srpfl_theory.theorem(srpfl.Problem({}, 0.125, 4), seed=0)
    factor = math.sqrt(1 - 0.01125)
    assert found.factor == pytest.approx(factor, rel=1e-6)
    assert found.floors[-1] == pytest.approx(0.01125 / (factor * (1 - factor)), rel=1e-6)


def test_distances_that_fall_as_the_root_of_n() -> None:
    stalls = {n: [0.3 / math.sqrt(n), 0.6 / n] for n in (4, 16, 64)}
    rows = {(row.quantity, row.seed): row.value for row in srpfl_theory.laws(1.0, stalls)}
    assert rows["power of n", 0] == pytest.approx(-0.5, rel=1e-12)
    assert rows["power of n", 1] == pytest.approx(-1.0, rel=1e-12)
    assert rows["distance times sqrt(n)", 0] == pytest.approx(0.3, rel=1e-12)
    assert rows["distance times sqrt(n)", 1] == pytest.approx(0.6 * (1 / 2 + 1 / 4 + 1 / 8) / 3, rel=1e-12)


class Made:
    """A comparison with a given speed-up, whatever the seeds are."""

    runs = 4

    def __init__(self, speedup: float) -> None:
        self.speedup, self.error = speedup, 0.5

    def speedup_of(self, seeds: object) -> float:
        return self.speedup


def test_the_growth_of_speedups_is_told_by_tenths_of_the_stall() -> None:
    comparisons: Any = [Made(20 * ratio) for ratio in srpfl_theory.RATIOS]
    rows = srpfl_theory.Targets.numbers(64, comparisons)
    assert [row.quantity for row in rows] == [f"speed-up at {c:g}" for c in srpfl_theory.RATIOS] + [
        "growth of the speed-up"
    ]
    assert (rows[0].setting, rows[0].value, rows[0].deviation, rows[0].runs) == ("N = 64", 20.4, 1.0, 4)
    assert rows[-1].value == pytest.approx(2.0, rel=1e-12)
    assert rows[-1].deviation == pytest.approx(0.0, abs=1e-9)


def test_all_targets_are_read_in_runs_whose_last_stage_is_long() -> None:
    """Stages before the last are those of the target that the speed-up has; 20 more would do for 1.02 of the stall."""
    problem = srpfl.Problem.of_config(CONFIG, 64)
    fast = srpfl_theory.Targets.run(problem, srpfl.SRPFL, 0, None)
    lengths = problem.points(srpfl_theory.COMMON).whole_rounds(1.02 * problem.floor)
    assert fast.rounds == sum(lengths[:-1]) + 160
    assert lengths[-1] + 20 < 160
    assert dict(fast.overrides)["trainer.participation.init_args.rounds_per_stage"].startswith(str(lengths[:-1])[:-1])
    assert srpfl_theory.Targets.run(problem, srpfl.FEDREP, 0, None) == srpfl_theory.fedrep(problem, 0, 160)


def test_runs_with_the_noise_of_the_config_are_shared() -> None:
    problem = srpfl.Problem.of_config(CONFIG, 16)
    plain = srpfl_theory.fedrep(problem, 3, 10)
    assert srpfl_theory.fedrep(problem, 3, 10, noise=1.0) == plain
    assert set(srpfl_theory.fedrep(problem, 3, 10, noise=0.0).overrides) - set(plain.overrides) == {
        ("data.init_args.noise", 0.0)
    }


def test_the_start_is_the_leading_subspace_of_weighted_outer_products() -> None:
    """Sine of the largest angle, from the least cosine: the least singular value of U^T B*."""
    problem = srpfl.Problem.of_config(CONFIG, 16)
    data = problem.data(5)
    features, targets = (part.numpy() for part in data.examples)
    moments = sum(y**2 * np.outer(x, x) for x, y in zip(features, targets, strict=True)) / len(targets)
    leading = np.linalg.eigh(moments)[1][:, -2:]
    cosine = np.linalg.svd(leading.T @ data.truth.numpy(), compute_uv=False)[-1]
    assert problem.start_distance(5) == pytest.approx(math.sqrt(1 - cosine**2), rel=1e-9)


@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_studies_from_end_to_end(tmp_path: Path) -> None:
    options = ["--quick", "--rounds", "10", "--output", str(tmp_path)]
    reproduce.main(["srpfl-stalls", "srpfl-contraction", "srpfl-starts", *options])
    with (tmp_path / "srpfl-stalls.csv").open(newline="") as file:
        lines = [line["method"] for line in csv.DictReader(file)]
    assert lines == [f"noise {noise}, n = {n}" for noise in ("1", "0.5", "0") for n in (4, 16)] + [
        "noise 1",
        "noise 0.5",
    ]
    rows = read(tmp_path / "srpfl-contraction-numbers.csv")
    assert {(row.setting, row.method) for row in rows} == {
        (f"N = {n}", method) for n in (64, 256) for method in (srpfl.FEDREP, srpfl_theory.THEOREM)
    }
    starts = read(tmp_path / "srpfl-starts-numbers.csv")
    assert [(row.setting, row.quantity) for row in starts] == [
        ("N = 16", "distance"),
        ("N = 64", "distance"),
        ("N = 16", "largest distance"),
        ("N = 64", "largest distance"),
    ]
    assert starts[0].value == starts[2].value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_quick_targets_from_end_to_end(tmp_path: Path) -> None:
    reproduce.main(["srpfl-targets", "--quick", "--rounds", "3", "--output", str(tmp_path)])
    with (tmp_path / "srpfl-targets.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["N"], line["rounds"]) for line in lines] == [(n, "- → -") for n in ("64", "256") for _ in range(6)]
    assert {math.isnan(row.value) for row in read(tmp_path / "srpfl-targets-numbers.csv")} == {True}
