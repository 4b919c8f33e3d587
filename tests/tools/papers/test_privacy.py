"""Accuracy against epsilon: the table of made-up results, and all of it on few rounds."""

import csv
from pathlib import Path

import pytest

from tools.papers import privacy
from tools.papers.experiments import Outcome
from tools.papers.kept import tabulate


def test_a_table_of_accuracies_and_epsilons() -> None:
    results = {
        noise: [
            Outcome(4, 0.0, "", {"val_acc": {4: accuracy}, "privacy/clip": {4: 1.5}, "privacy/epsilon": {4: epsilon}})
        ]
        for noise, accuracy, epsilon in ((0.0, 0.9, 0.0), (0.5, 0.8, 12.3456), (1.0, 0.7, 3.0))
    }
    assert tabulate("", privacy.measure(results), "noise multiplier").rows == [
        ["0", "", "90.0", "1.50"],
        ["0.5", "12.35", "80.0", "1.50"],
        ["1", "3.00", "70.0", "1.50"],
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_study(tmp_path: Path) -> None:
    privacy.main(["--quick", "--rounds", "2", "--output", str(tmp_path)])
    with (tmp_path / "privacy.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["noise multiplier"]) for line in lines] == list(privacy.NOISES)
    epsilons = [float(line["epsilon"].split()[0]) for line in lines[1:]]
    assert epsilons == sorted(epsilons, reverse=True)
    assert "these numbers decide nothing" in (tmp_path / "privacy.md").read_text()
