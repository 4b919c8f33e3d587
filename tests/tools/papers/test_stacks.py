"""The studies of stacks: claims on made-up results, and one study on few rounds."""

import csv
from pathlib import Path

import pytest

from tools.papers import stacks
from tools.papers.experiments import Outcome


def test_claims_compare_mean_accuracies() -> None:
    values = {"FedAvg": 0.9, "FedAvg + FLSS": 0.8, "Sign EF": 0.5, "Sign EF + FLSS": 0.6}
    results = {
        name: [Outcome(9, 0.0, "", {"val_acc": dict.fromkeys((3, 6, 9), value)})] for name, value in values.items()
    }
    first, second = stacks.claim_compression(results)
    assert (first.text, first.holds) == ("FedAvg + FLSS is at least as accurate as FedAvg", False)
    assert (second.holds, second.numbers) == (True, "Sign EF 50.0, Sign EF + FLSS 60.0")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # whatever Lightning deprecates; the runs are the subject
@pytest.mark.parametrize("study", stacks.STUDIES)
def test_quick_study(study: str, tmp_path: Path) -> None:
    stacks.main([study, "--quick", "--rounds", "5", "--output", str(tmp_path)])
    with (tmp_path / f"{study}.csv").open(newline="") as file:
        assert [line["method"] for line in csv.DictReader(file)] == list(stacks.STUDIES[study].methods)
    assert "neither numbers nor claims count" in (tmp_path / f"{study}.md").read_text()
    assert (tmp_path / f"{study}.png").read_bytes().startswith(b"\x89PNG")
