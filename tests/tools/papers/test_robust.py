"""The study of robust aggregators: its table of made-up results, and all of it on few rounds."""

import csv
from pathlib import Path

import pytest

from tools.papers import robust
from tools.papers.experiments import Outcome
from tools.papers.kept import tabulate


def test_a_column_for_each_attack() -> None:
    values = {"median": 0.9, "trimmed mean": 0.72, "Krum": 0.7}
    results = {
        (method, attack): [Outcome(4, 0.0, "", {"val_acc": dict.fromkeys((2, 4), values.get(method, 0.45))})]
        for method in robust.METHODS
        for attack in robust.ATTACKS
    }
    results["mean", "no attack"] = [Outcome(4, 0.0, "", {"val_acc": {2: 0.8, 4: 1.0}})]
    table = tabulate("", robust.measure(results), "aggregator")
    assert table.columns == ["aggregator", *robust.ATTACKS]
    lines = {line[0]: line[1:] for line in table.rows}
    assert lines["median"] == ["90.0", "90.0", "90.0"]
    assert lines["mean"] == ["90.0", "45.0", "45.0"]  # 0.8 and 1 without attack


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_study(tmp_path: Path) -> None:
    robust.main(["--quick", "--output", str(tmp_path)])
    with (tmp_path / "robust.csv").open(newline="") as file:
        assert [line["aggregator"] for line in csv.DictReader(file)] == list(robust.METHODS)
    assert "these numbers decide nothing" in (tmp_path / "robust.md").read_text()
