"""What settings take is counted from their configs, and the table in the docs is what the tool makes."""

from pathlib import Path

import pytest

from tools.papers import budget
from tools.papers.budget import ROWS, Budget, budget_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def row_of(*configs: str) -> budget.Row:
    return next(row for row in ROWS if row.configs == configs)


def test_a_setting_is_counted() -> None:
    """18,000 examples, of which 100 clients have 150 each: 5 epochs of 15 batches."""
    assert budget_of(row_of("srpfl/femnist")) == Budget(100, 100, 75, 10, 550_346, 150)
    assert budget_of(row_of("ssf/cifar100")) == Budget(4, 4, 10, 32, 1_733_812, 3_900)


def test_hours_follow_from_the_measured_client_steps() -> None:
    found = budget_of(row_of("fedmrur/cifar10"))
    assert found.hours is not None
    least, most = found.hours
    assert least == pytest.approx(1600 * 10 * 15 / (4 * 5 * 7.64) / 3600)
    # The network of FedMRUR keeps 32 pixels, where the measured one has 8 after its stem.
    wide, narrow = (budget.operations(budget.ResNet(depth=18, stem=s), (3, 32, 32)) for s in ("cifar", "imagenet"))
    assert narrow == pytest.approx(2 * 37e6, rel=0.02)  # torchvision's 1.81 GMAC at 224 pixels, by (32 / 224)^2
    assert wide == pytest.approx(2 * 0.556e9, rel=0.01)
    assert most / least == pytest.approx(50 * wide / (10 * narrow))


@pytest.mark.slow
def test_the_docs_have_the_table() -> None:
    rows = [line for line in budget.table().markdown().splitlines() if line.startswith("|")]
    text = (ROOT / "docs/data.md").read_text()
    assert len(rows) == 2 + len(ROWS)
    assert "\n".join(rows) in text
