"""Costs are fitted; each kind of overhead once."""

import csv
from pathlib import Path

import pytest

from tools.benchmarks import overhead


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_costs_are_fitted() -> None:
    grid = [overhead.Job(engine, per_round=m, steps=k) for engine in overhead.ENGINES for m in (1, 200) for k in (1, 4)]
    steps = [1, 4, 200, 800, 1, 4, 4, 16]  # of 200 clients: 200 cohorts of one, 4 of 64
    seconds = [1e-6 * (500 + 20 * job.per_round + 300 * count) for job, count in zip(grid, steps, strict=True)]
    cost = overhead.fit_costs(grid, seconds)
    assert (cost.round, cost.client, cost.step, cost.error) == pytest.approx((500, 20, 300, 0), abs=1e-6)


@pytest.mark.slow
def test_a_look_at_costs(tmp_path: Path) -> None:
    overhead.main(["costs", "--quick", "--seconds", "0.01", "--output", str(tmp_path)])
    lines = {line[""]: line for line in rows(tmp_path / "costs.csv")}
    for variant in overhead.VARIANTS:
        shares = {
            stage: float(line[variant]) for stage, line in lines.items() if stage.endswith(", %") and "fit" not in stage
        }
        assert sum(shares.values()) == pytest.approx(100, abs=1)
        assert min(shares[f"train: {stage}, %"] for stage in ("batches", "gradient", "cohorts")) > 0


def test_the_bare_round_is_the_trainers(tmp_path: Path) -> None:
    overhead.main(["ssf-round", "--quick", "--output", str(tmp_path)])
    names = [row[""] for row in rows(tmp_path / "ssf-round.csv")]
    assert names == ["bare tensor operations", "lfl", "ratio"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_look_at_callbacks(tmp_path: Path) -> None:
    overhead.main(["callbacks", "--quick", "--output", str(tmp_path)])
    lines = rows(tmp_path / "callbacks.csv")
    assert [line["callbacks"] for line in lines] == list(overhead.STACKS)
    assert all(float(line[f"us {engine}"]) > 0 for line in lines for engine in overhead.ENGINES)
