"""Exponents, and what grows in memory."""

import csv
import json
from pathlib import Path

import pytest

from tools.benchmarks import growth, memory


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        growth.main(list(arguments))
    return int(ended.value.code or 0)


def test_exponents_are_slopes() -> None:
    jobs = {n: growth.Job("sequential", clients=n) for n in (10, 100, 1000)}
    curve = growth.Curve("clients", "sequential", jobs, [[1.0, 10.0, 100.0], [1.0, 10.0, 400.0]])
    assert curve.exponents == pytest.approx((1.0, 1.0, 1.301), abs=1e-3)
    assert curve.last == pytest.approx(1.0)
    assert not curve.is_superlinear
    assert growth.Curve("clients", "sequential", jobs, [[1.0, 1.0, 20.0]]).is_superlinear


@pytest.mark.slow
def test_a_look_at_time(tmp_path: Path) -> None:
    assert run("time", "--quick", "--seconds", "0.01", "--output", str(tmp_path)) == 0
    lines = rows(tmp_path / "time.csv")
    assert [(line["quantity"], line["engine"]) for line in lines] == [
        (quantity, engine) for engine in growth.ENGINES for quantity in ("clients per round", "parameters", "clients")
    ]
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_growth_is_told_with_its_numbers() -> None:
    assert memory.grows("MB", [100.0, 104.0, 90.0], 0.05) == []
    assert memory.grows("MB", [100.0, 104.0, 106.0], 0.05) == [
        "FAILED: MB: 100.00, 104.00, 106.00; 6.0 % more than the first, over 5 %"
    ]


@pytest.mark.slow
def test_a_job_runs_in_a_process_of_its_own() -> None:
    job = memory.Job(clients=30, rounds=3, hidden=4)
    measured = memory.run_apart(job)
    assert len(measured.resident) == len(measured.seconds) == len(measured.round_seconds) == 3
    assert measured.peak >= max(measured.resident) > 0
    assert measured.state_bytes % (4 * measured.num_parameters) == 0
    assert measured.files["clients"] > measured.state_bytes > 0
    column = memory.column_of(job, measured, warmup=1)
    assert column["MB on disk, clients' rows"] == f"{measured.files['clients'] / 1e6:.2f}"


def test_a_job_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    growth.main(["job", json.dumps({"clients": 12, "rounds": 1, "hidden": 2, "method": "FedAvg"})])
    assert len(json.loads(capsys.readouterr().out)["resident"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_neither_clients_nor_rounds_cost_memory(tmp_path: Path) -> None:
    sizes = ["--clients", "200", "2000", "--rounds", "60", "--repeats", "1", "--growth_rounds", "100"]
    assert run("memory", *sizes, "--time_tolerance", "1", "--output", str(tmp_path)) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_look_at_memory_and_at_a_million(tmp_path: Path) -> None:
    run("memory", "--quick", "--output", str(tmp_path))  # too short to tell whether anything grows
    assert [line["clients"] for line in rows(tmp_path / "clients.csv")] == ["20", "200", "200"]
    assert run("million", "--quick", "--output", str(tmp_path)) == 0
    lines = {line[0]: line[1:] for line in csv.reader((tmp_path / "million.csv").read_text().splitlines())}
    assert lines[""] == ["FedAvg", "FedAvg", "FedAvg, Dirichlet(10)", "SCAFFOLD", "SCAFFOLD"]
    assert lines["clients"] == ["1,000", "1,000", "1,000", "1,000", "100"]
    assert [float(cell) > 0 for cell in lines["MB on disk, clients' rows"]] == [False] * 3 + [True] * 2
