"""The study of robust aggregators: claims on made-up results, and all of it on few rounds."""

import csv
from pathlib import Path

import pytest

from tools.papers import robust
from tools.papers.experiments import Outcome


def test_claims_are_about_the_mean_and_three_that_are_robust() -> None:
    values = {"median": 0.9, "trimmed mean": 0.72, "Krum": 0.7}
    results = {
        (method, attack): [Outcome(4, 0.0, "", {"val_acc": dict.fromkeys((2, 4), values.get(method, 0.45))})]
        for method in robust.METHODS
        for attack in robust.ATTACKS
    }
    results["mean", "no attack"] = [Outcome(4, 0.0, "", {"val_acc": {2: 0.8, 4: 1.0}})]
    found = robust.claims(results)
    assert [claim.holds for claim in found] == [True, True, True, False] * 2
    assert found[3].text == "signs flipped: Krum learns (at least 0.8 of the mean without attack)"
    assert found[3].numbers == "without attack 90.0, Krum 70.0"
    (line,) = (row for row in robust.tabulate(results, "").rows if row[0] == "median")
    assert line == ["median", "90.0", "90.0", "90.0"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
def test_quick_study(tmp_path: Path) -> None:
    robust.main(["--quick", "--output", str(tmp_path)])
    with (tmp_path / "robust.csv").open(newline="") as file:
        assert [line["aggregator"] for line in csv.DictReader(file)] == list(robust.METHODS)
    assert "neither numbers nor claims count" in (tmp_path / "robust.md").read_text()
